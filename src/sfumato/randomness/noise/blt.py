"""Noise of a buffered linear Toeplitz matrix, made online with a few buffers."""

from __future__ import annotations

import numpy as np

from sfumato.privacy.mechanism import BufferedToeplitz
from sfumato.randomness.noise.blocks import Fresh


class BufferedToeplitzNoise:
    """C^-1 z, by a recursion over the steps (McMahan et al. 2024, arXiv 2404.16706, algorithm 1):

        zhat_t = z_t - sum_j scale_j buffer_j,        buffer_j <- decay_j buffer_j + zhat_t

    **Guarantee.** C is lower triangular Toeplitz with c_0 = 1 and c_k = sum_j scale_j decay_j^(k-1): buffer j holds
    sum_k decay_j^(k-1) zhat_{t-k}, so zhat_t + sum_k c_k zhat_{t-k} = z_t, row t of C zhat = z.
    """

    def __init__(self, mechanism: BufferedToeplitz):
        self._scales, self._decays = mechanism.scales, mechanism.decays

    def noise(self, step: int, fresh: Fresh, kept: np.ndarray) -> np.ndarray:
        """zhat of the step."""
        noise = fresh("noise")
        for scale, buffer in zip(self._scales, kept, strict=True):
            noise -= scale * buffer
        for decay, buffer in zip(self._decays, kept, strict=True):
            buffer *= decay
            buffer += noise
        return noise
