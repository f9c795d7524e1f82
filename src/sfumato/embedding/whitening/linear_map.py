"""From a noisy scatter within classes to the map that evens it out: linear discriminant analysis (Fisher 1936), as
within-class covariance normalisation has it (Hatch, Kajarekar and Stolcke 2006).

All of it is post-processing of one release and of public constants.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sfumato.embedding.whitening.query import MEAN, MEAN_SHARE, SCATTER, symmetric

FLOOR = 0.5
"""Least eigenvalue, over the largest that noise alone has in expectation: measured in docs/embeddings.md."""
LEAST = 0.03
"""Least eigenvalue over the mean of all, where there is next to no noise."""


def whitening(released: dict[str, Tensor], *, deviation: float) -> tuple[Tensor, Tensor]:
    """The map z -> A z + b, of which A is symmetric, positive, and nowhere smaller than the identity.

    A is the inverse square root of the scatter, times a number that makes the direction of the largest scatter keep
    its length: coordinates outside of the map, of which nothing is known, count as that one does. Eigenvalues of a
    symmetric matrix of noise reach `deviation * sqrt(2 K)` (Wigner 1958); those below `FLOOR` times that are taken
    for it. So where noise is all that there is, A is the identity. The mean that b takes out is shrunk by how much of
    its square is noise (James and Stein 1961), to nothing where all of it is.

    Args:
        released: "scatter" (K (K + 1) / 2) and "mean" (K) of `ClippedScatters`, noisy, over the number of users.
        deviation: standard deviation of the noise in each of these numbers.

    Returns:
        A (K, K) and b (K), float32.
    """
    scatter, mean = symmetric(released[SCATTER].cpu().double()), released[MEAN].cpu().double()
    width = len(mean)
    values, vectors = torch.linalg.eigh(scatter)
    floor = max(FLOOR * deviation * math.sqrt(2 * width), LEAST * float(values.mean()))
    if not math.isfinite(floor) or floor <= 0:  # nobody has two images of one class, and no noise says otherwise
        return torch.eye(width), torch.zeros(width)
    weights = values.clamp(min=floor).rsqrt()
    matrix = (vectors * (weights / weights.min())) @ vectors.T
    square = float(mean.square().sum())
    kept = max(0.0, 1 - width * deviation**2 / square) if square > 0 else 0.0
    return matrix.float(), (matrix @ mean * (-kept / MEAN_SHARE)).float()
