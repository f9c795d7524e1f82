"""Independent Gaussian noise."""

from __future__ import annotations

import numpy as np

from sfumato.privacy.mechanism import Gaussian
from sfumato.randomness.noise.blocks import Fresh


class GaussianNoise:
    """Fresh numbers in every step; nothing is remembered (De 2022, equation 2)."""

    def __init__(self, mechanism: Gaussian):
        pass

    def noise(self, step: int, fresh: Fresh, kept: np.ndarray) -> np.ndarray:
        """N(0, 1) in every coordinate."""
        return fresh("noise")
