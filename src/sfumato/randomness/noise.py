"""Independent Gaussian noise, one draw for each (step, parameter)."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from sfumato._checks import positive
from sfumato.privacy.mechanism import Gaussian
from sfumato.randomness.keys import DiceKey


class Noise:
    """The noise of a plan's mechanism.

    Args:
        mechanism: the plan's mechanism.
        sensitivity: S, by how much one unit can move the sum in L2 norm: `ClippedGradient.sensitivity(adjacency)`.
        key: the run's dice key.

    **Guarantee.** `add` returns the sum plus N(0, (noise_multiplier * S)^2) in every coordinate, independent across
    steps, parameters and coordinates, drawn in float64 from a 256-bit key and rounded once, to float32, together with
    the sum. A replayed step has the same noise; two steps never share any (De 2022, equation 2).
    """

    def __init__(self, mechanism: Gaussian, *, sensitivity: float, key: DiceKey):
        self.mechanism = mechanism
        self.sensitivity = positive("sensitivity", sensitivity)
        self._key = key

    @property
    def standard_deviation(self) -> float:
        """noise_multiplier * sensitivity, in the units of the sum."""
        return self.mechanism.noise_multiplier * self.sensitivity

    def add(self, total: Mapping[str, torch.Tensor], step: int) -> dict[str, torch.Tensor]:
        """The noisy sum: {name: float32 tensor} of the same shapes, on the same devices."""

        def noisy(name: str) -> torch.Tensor:
            value = total[name]
            drawn = self._key.generator("noise", step, name).standard_normal(tuple(value.shape))
            drawn = np.asarray(drawn * self.standard_deviation)  # NumPy makes a scalar of what has no dimensions
            return torch.from_numpy(drawn).to(value.device).add_(value).to(torch.float32)

        if sum(value.numel() for value in total.values()) < 1_000_000:
            return {name: noisy(name) for name in total}
        with ThreadPoolExecutor(max_workers=torch.get_num_threads()) as pool:
            return dict(zip(total, pool.map(noisy, total), strict=True))
