"""Numbers drawn by (step, parameter, block), made into a step's noise in threads, and added to its sum."""

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


Take = Callable[[str, slice, np.ndarray], None]
"""Takes the noise of these coordinates of a parameter, flat, in the units of the sum: float64 (n,)."""


def draw(
    rule: StepNoise,
    shapes: Mapping[str, torch.Size],
    kept: Mapping[str, Tensor],
    step: int,
    key: RunKey,
    standard_deviation: float,
    share: tuple[int, int],
    take: Take,
) -> None:
    """The step's noise for parameters of these shapes, by name, handed over block by block, from several threads.

    Args:
        kept: what is remembered, {name: float64 (buffers, *its shape)} on the CPU; brought up to date in place.
        share: (i, n) for each n-th block from the i-th on; (0, 1) for all.

    **Guarantee.** Numbers of different steps, parameters and blocks come from generators of their own, float64 by the
    ziggurat; the noise is made of them in float64.

    The bits that a key draws are the same everywhere. The numbers are too, but for those beyond 3.65 standard
    deviations, one of 3,900: these are logarithms of the C library, whose last bit in float64 is its own.
    """
    sizes, key = {name: shape.numel() for name, shape in shapes.items()}, key.at(step)

    def work(place: tuple[str, slice]) -> None:
        name, columns = place
        block = columns.start // BLOCK
        remembered = kept[name].view(len(kept[name]), sizes[name])[:, columns].numpy()
        drawn = np.empty(columns.stop - columns.start)
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
        take(name, columns, drawn)

    places = blocks_of(shapes)[share[0] :: share[1]]
    if sum(sizes.values()) < BLOCK:
        for place in places:
            work(place)
    else:
        with ThreadPoolExecutor(max_workers=torch.get_num_threads()) as pool:
            list(pool.map(work, places))


def blocks_of(shapes: Mapping[str, torch.Size]) -> list[tuple[str, slice]]:
    """All blocks of parameters of these shapes: of which, and which of its coordinates."""
    return [
        (name, slice(start, min(start + BLOCK, shape.numel())))
        for name, shape in shapes.items()
        for start in range(0, shape.numel(), BLOCK)
    ]


class OnTheCPU:
    """Noise that is drawn when the sum is there, and added to it block by block, while a block is near the processor.

    Args:
        drawing: `draw` but for its last argument.
    """

    def __init__(self, drawing: Callable[[Take], None]):
        self._drawing = drawing

    def added_to(self, total: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The sum plus the noise, {name: float32 tensor}, rounded once, together."""
        noisy = {name: torch.zeros(value.shape, dtype=torch.float32) for name, value in total.items()}

        def take(name: str, columns: slice, drawn: np.ndarray) -> None:
            noisy[name].view(-1)[columns] = torch.from_numpy(drawn) + total[name].reshape(-1)[columns]

        self._drawing(take)
        return noisy


class DrawnAhead:
    """Noise for a sum that a device computes: drawn on the CPU meanwhile, and copied to the device once.

    Args:
        drawing: `draw` but for its last argument; it begins at once, in a thread of its own.
        shapes: of the parameters, by name.
        device: of the sum.
    """

    def __init__(self, drawing: Callable[[Take], None], shapes: Mapping[str, torch.Size], device: torch.device):
        self._shapes, self._device = shapes, device
        sizes = [shape.numel() for shape in shapes.values()]
        starts = dict(zip(shapes, np.cumsum([0, *sizes]).tolist(), strict=False))
        self._host = torch.zeros(sum(sizes), dtype=torch.float64, pin_memory=device.type == "cuda")
        flat = self._host.numpy()

        def take(name: str, columns: slice, drawn: np.ndarray) -> None:
            flat[starts[name] + columns.start : starts[name] + columns.stop] = drawn

        self._pool = ThreadPoolExecutor(max_workers=1)
        self._done = self._pool.submit(drawing, take)

    def added_to(self, total: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The sum plus the noise, {name: float32 tensor} on the device, rounded once, together."""
        self._done.result()
        self._pool.shutdown()
        there = self._host.to(self._device, non_blocking=True).split([shape.numel() for shape in self._shapes.values()])
        own = zip(self._shapes.items(), there, strict=True)
        return {name: (noise.view(shape) + total[name]).to(torch.float32) for (name, shape), noise in own}
