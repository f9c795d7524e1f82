"""Whitening by the statistics of public features, kept small.

Features are means over the quarters of an image. Over synthetic images no quarter differs from another, so the
covariance of sums and differences of quarters (Haar's basis) falls into four blocks of n x n in place of one of
4n x 4n: a sixteenth of the time to find, a quarter of the numbers to keep. Each block's eigenvectors are kept as whole
numbers of 8 bits. Rounding them makes the map another one, and no less a public linear map.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

QUARTERS = 4
_LEAST = 0.03
"""Added to each eigenvalue, of their mean: directions that hardly occur are not blown up."""
POWER = 0.75
"""1 whitens wholly, 0 not at all. A little less than wholly, and noise falls where there is less to be known."""
_LEVELS = 127


class Whitening(NamedTuple):
    """From the features (N, n, 4) of the quarters to white ones (N, 4n).

    Args:
        center, deviation: (n,), of each atom over images and quarters.
        vectors: int8 (4, n, n), for each of Haar's components a column for each direction.
        scales: (4, n), what to multiply each direction with.
    """

    center: Tensor
    deviation: Tensor
    vectors: Tensor
    scales: Tensor

    def __call__(self, features: Tensor) -> Tensor:
        """White features (N, 4n)."""
        parts = haar((features - self.center[:, None]) / self.deviation[:, None])
        maps = zip(parts.unbind(2), self.vectors.to(parts.dtype), self.scales, strict=True)
        return torch.cat([part @ vectors * scales for part, vectors, scales in maps], 1)


def haar(features: Tensor) -> Tensor:
    """Sums and differences of the quarters (top left, top right, bottom left, bottom right), orthonormal: (N, n, 4)."""
    signs = [[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]]
    return features @ torch.tensor(signs, dtype=features.dtype, device=features.device).T.div(2)


def whitening(features: Tensor, power: float = POWER) -> Whitening:
    """The whitening of public features (N, n, 4), by their mean and covariance over the N images.

    Args:
        power: 1 for directions of one variance, 0 for the variances that they have.
    """
    center, deviation = features.mean((0, 2)), features.transpose(1, 2).flatten(0, 1).std(0) + 1e-4
    parts = haar((features - center[:, None]) / deviation[:, None])
    found = [torch.linalg.eigh(part.T @ part / len(part)) for part in parts.unbind(2)]
    values = torch.stack([one.eigenvalues.clamp(min=0) for one in found])
    vectors = torch.stack([one.eigenvectors for one in found])
    step = vectors.abs().amax(1, keepdim=True) / _LEVELS
    scales = step.squeeze(1) * (values + _LEAST * values.mean()).clamp(min=1e-12) ** (-power / 2)
    return Whitening(center, deviation, (vectors / step).round().to(torch.int8), scales)
