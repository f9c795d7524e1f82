"""Independent Gaussian noise, drawn by (step, parameter, block)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from sfumato.randomness.keys import DiceKey

BLOCK = 1 << 20
"""So many numbers of a parameter are drawn by one generator, so that several workers may draw one parameter's noise."""


def add(total: Mapping[str, Tensor], step: int, key: DiceKey, standard_deviation: float) -> dict[str, Tensor]:
    """The sum plus N(0, standard_deviation^2) in every coordinate: {name: float32 tensor} of the same shapes.

    **Guarantee.** The numbers of different steps, parameters and blocks come from generators of their own, float64 by
    the ziggurat, and are rounded once, to float32, together with the sum.
    """
    noisy = {name: torch.empty(value.shape, dtype=torch.float32, device=value.device) for name, value in total.items()}

    def draw(place: tuple[str, int]) -> None:
        name, block = place
        numbers = total[name].reshape(-1)[block * BLOCK : (block + 1) * BLOCK]
        # The first block's stream is called as those of parameters of a single block always were.
        drawn = key.generator(f"noise {block}" if block else "noise", step, name).standard_normal(len(numbers))
        drawn *= standard_deviation
        noisy[name].view(-1)[block * BLOCK : (block + 1) * BLOCK] = torch.from_numpy(drawn).to(numbers.device) + numbers

    places = list(_blocks(total))
    if sum(value.numel() for value in total.values()) < BLOCK:
        for place in places:
            draw(place)
    else:
        with ThreadPoolExecutor(max_workers=torch.get_num_threads()) as pool:
            list(pool.map(draw, places))
    return noisy


def _blocks(total: Mapping[str, Tensor]) -> Iterator[tuple[str, int]]:
    for name, value in total.items():
        for block in range(-(-value.numel() // BLOCK)):
            yield name, block
