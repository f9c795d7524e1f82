"""Noise of banded or buffered Toeplitz matrices, computed online in a few buffers."""

from __future__ import annotations

import numpy as np

from sfumato.privacy.mechanism import BandedToeplitz, BufferedToeplitz
from sfumato.randomness.noise.blocks import Fresh

AHEAD = 8
"""For how many steps the contribution of earlier steps is computed at once. Checkpoint states depend on it."""
SMALL = 1 << 18
"""A BLAS does up to this many multiplications in the calling thread. The threads here are our own."""


class BandedToeplitzNoise:
    """C^-1 z by forward substitution (Choquette-Choo et al. 2023, arXiv 2306.08153, algorithm 9):

        zhat_t = z_t - sum_{j=1}^{b-1} c_j zhat_{t-j}

    with b - 1 buffers: zhat of step t replaces the oldest one, in buffer t mod (b - 1). Reading all buffers in every
    step would dominate the time. So they are read once for the next `AHEAD` steps: the part of each of these steps' sum
    that is already known is stored in the buffer that the step itself will use.
    """

    def __init__(self, mechanism: BandedToeplitz):
        self._coefficients = np.array(mechanism.coefficients)
        self._count = len(mechanism.coefficients) - 1
        self._ahead = min(AHEAD, self._count)

    def noise(self, step: int, fresh: Fresh, buffers: np.ndarray) -> np.ndarray:
        """zhat of the step."""
        noise = fresh("noise")
        if not self._count:
            return noise
        begun = step - step % self._ahead
        if step == begun:
            self._look_ahead(step, buffers)
        place = step % self._count
        noise -= buffers[place]
        for earlier in range(begun, step):
            noise -= self._coefficients[step - earlier] * buffers[earlier % self._count]
        buffers[place] = noise
        return noise

    def _look_ahead(self, step: int, buffers: np.ndarray) -> None:
        """Store what earlier steps subtract from the noise of the next `AHEAD` steps, in the buffers of these steps."""
        coming = step + np.arange(self._ahead)
        past = step - 1 - np.arange(self._count)
        distance = coming[:, None] - past
        weights = np.zeros((self._ahead, self._count))
        weights[:, past % self._count] = np.where(
            distance <= self._count, self._coefficients[np.minimum(distance, self._count)], 0.0
        )
        width = max(1, SMALL // weights.size)
        for start in range(0, buffers.shape[1], width):
            columns = buffers[:, start : start + width]
            columns[coming % self._count] = weights @ columns


class BufferedToeplitzNoise:
    """C^-1 z by a recursion over the steps (McMahan et al. 2024, arXiv 2404.16706, algorithm 1):

        zhat_t = z_t - sum_j scale_j buffer_j,        buffer_j <- decay_j buffer_j + zhat_t

    **Guarantee.** C is lower triangular Toeplitz with c_0 = 1 and c_k = sum_j scale_j decay_j^(k-1): buffer j holds
    sum_k decay_j^(k-1) zhat_{t-k}, so zhat_t + sum_k c_k zhat_{t-k} = z_t, row t of C zhat = z.
    """

    def __init__(self, mechanism: BufferedToeplitz):
        self._scales, self._decays = mechanism.scales, mechanism.decays

    def noise(self, step: int, fresh: Fresh, buffers: np.ndarray) -> np.ndarray:
        """zhat of the step."""
        noise = fresh("noise")
        for scale, buffer in zip(self._scales, buffers, strict=True):
            noise -= scale * buffer
        for decay, buffer in zip(self._decays, buffers, strict=True):
            buffer *= decay
            buffer += noise
        return noise
