"""Numbers drawn by (step, parameter, block), made into a step's noise and added to its sum, in threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from sfumato.privacy.mechanism import Gaussian
from sfumato.randomness.keys import RunKey

BLOCK = 1 << 20
"""So many numbers of a parameter are drawn by one generator, so that several workers may draw one parameter's noise."""
PIECE = 1 << 14
"""So many numbers of a block are worked on at once: they and their buffers stay in the processor's cache."""

Fresh = Callable[[str], np.ndarray]
"""Of a stream, that many independent N(0, 1) as a piece has: float64 (n,)."""


class StepNoise(Protocol):
    """How a mechanism makes the noise of a step, in standard deviations, out of fresh numbers and what it remembers.

    What it does with one coordinate it does with all, so a parameter may be worked on in pieces.
    """

    def noise(self, step: int, fresh: Fresh, kept: np.ndarray) -> np.ndarray:
        """The step's noise: float64 (n,). `kept`, float64 (buffers, n), is brought up to date in place."""
        ...


class GaussianNoise:
    """Fresh numbers in every step; nothing is remembered (De 2022, equation 2)."""

    def __init__(self, mechanism: Gaussian):
        pass

    def noise(self, step: int, fresh: Fresh, kept: np.ndarray) -> np.ndarray:
        """N(0, 1) in every coordinate."""
        return fresh("noise")


def add(
    rule: StepNoise,
    total: Mapping[str, Tensor],
    kept: Mapping[str, Tensor],
    step: int,
    key: RunKey,
    standard_deviation: float,
) -> dict[str, Tensor]:
    """The sum plus the step's noise: {name: float32 tensor} of the same shapes, on the same devices.

    Args:
        kept: what is remembered, {name: float64 (buffers, *its shape)} on the CPU; brought up to date in place.

    **Guarantee.** Numbers of different steps, parameters and blocks come from generators of their own, float64 by the
    ziggurat; the noise is made of them in float64 and rounded once, to float32, together with the sum.

    The bits that a key draws are the same everywhere. The numbers are too, but for those beyond 3.65 standard
    deviations, one of 3,900: these are logarithms of the C library, whose last bit in float64 is its own.
    """
    noisy = {name: torch.empty(value.shape, dtype=torch.float32, device=value.device) for name, value in total.items()}

    def work(place: tuple[str, int]) -> None:
        name, block = place
        columns = slice(block * BLOCK, (block + 1) * BLOCK)
        numbers = total[name].reshape(-1)[columns]
        remembered = kept[name].view(len(kept[name]), total[name].numel())[:, columns].numpy()
        drawn = np.empty(len(numbers))
        generators: dict[str, np.random.Generator] = {}
        for start in range(0, len(drawn), PIECE):
            piece = drawn[start : start + PIECE]

            def fresh(stream: str, size: int = len(piece)) -> np.ndarray:
                if stream not in generators:
                    # The first block's stream is called as those of parameters of a single block always were.
                    generators[stream] = key.generator(f"{stream} {block}" if block else stream, step, name)
                return generators[stream].standard_normal(size)

            noise = rule.noise(step, fresh, remembered[:, start : start + PIECE])
            np.multiply(noise, standard_deviation, out=piece)
        noisy[name].view(-1)[columns] = torch.from_numpy(drawn).to(numbers.device) + numbers

    places = [(name, block) for name, value in total.items() for block in range(-(-value.numel() // BLOCK))]
    if sum(value.numel() for value in total.values()) < BLOCK:
        for place in places:
            work(place)
    else:
        with ThreadPoolExecutor(max_workers=torch.get_num_threads()) as pool:
            list(pool.map(work, places))
    return noisy
