"""The private measurement of whitening, and the linear map computed from it.

The map is post-processing of one release and of public constants.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sfumato._checks import one_of, positive, positive_integer
from sfumato.gradients.clipping import clip_factors, exact_squared_norms, exact_weighted_sum

ADJACENCIES = ("add-or-remove", "zero-out")
SCATTER, MEAN = "scatter", "mean"
MEAN_SHARE = 0.03
"""The factor of a user's mean in the released vector. With it, mean and scatter have about the same norm."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ScatterSum:
    """The clipped vector of one user, or the sum of several.

    Attributes:
        gradients: "scatter", the upper triangle of a matrix (`triangle`), and "mean", `MEAN_SHARE` times a vector.
    """

    gradients: dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class ClippedScatters:
    """``sum over users of clip_C(S_u, a m_u)``, one user at a time.

    S_u is the mean over the user's images of (z - c)(z - c)^T, with c the mean of the user's images of the same class.
    m_u is the mean of all images of the user. Both are means, so users with more images do not count more. S_u is
    symmetric; the vector holds its upper triangle, with off-diagonal entries times the square root of 2, so that the
    vector's L2 norm is the matrix's Frobenius norm. a is `MEAN_SHARE`.

    Args:
        width: K, the length of z.
        max_norm: C, the bound on the L2 norm of S_u and `MEAN_SHARE` m_u together.

    **Guarantee.** Unit: a user, with all of their records; adjacency: add or remove one user, or zero one out. A user's
    vector is a function of that user's own records and of public constants, its norm is at most C as computed
    (`clipping.clip_factors`, with room for the grid's rounding), and it is in the sum once. So the sum moves by at most
    C in L2 norm. A vector that is not finite counts as zero. Replacing one user by another would move the sum by 2 C,
    and is not offered. Assumption: the caller passes all of a user's records in one call, and in one call only
    (`WhiteningSteps`).
    """

    width: int
    max_norm: float = 1.0

    def __post_init__(self) -> None:
        positive_integer("width", self.width)
        positive("max_norm", self.max_norm)

    @property
    def sums_over(self) -> Literal["users"]:
        """The unit of the sum: each user's vector is clipped."""
        return "users"

    def sensitivity(self, adjacency: str) -> float:
        """The L2 distance by which one user can move the sum: C."""
        one_of("adjacency", adjacency, ADJACENCIES)
        return self.max_norm

    def zeros(self) -> dict[str, Tensor]:
        """The sum over no users."""
        return {SCATTER: torch.zeros(self.width * (self.width + 1) // 2), MEAN: torch.zeros(self.width)}

    @torch.no_grad()
    def __call__(self, vectors: Tensor, labels: Tensor) -> ScatterSum:
        """The clipped vector of one user.

        Args:
            vectors: (n, K), z of all of the user's records.
            labels: (n,) int64, the class of each record.
        """
        if not len(labels):
            return ScatterSum(gradients=self.zeros())
        vectors = vectors.cpu().float()
        _, codes, counts = torch.unique(labels.cpu(), return_inverse=True, return_counts=True)
        centres = torch.zeros(len(counts), self.width).index_add_(0, codes, vectors) / counts[:, None]
        within = vectors - centres[codes]
        own = {SCATTER: triangle(within.T @ within / len(labels)), MEAN: MEAN_SHARE * vectors.mean(0)}
        squares = sum(exact_squared_norms(value[None]) for value in own.values())
        assert isinstance(squares, Tensor)
        factors = clip_factors(squares, torch.zeros_like(squares), max_norm=self.max_norm, of=own.values())
        return ScatterSum(gradients={name: exact_weighted_sum(value[None], factors) for name, value in own.items()})


def triangle(matrix: Tensor) -> Tensor:
    """A symmetric matrix (K, K) as a vector (K (K + 1) / 2) of the same norm: its upper triangle, row by row, with
    off-diagonal entries times the square root of 2.

    >>> triangle(torch.tensor([[1.0, 2.0], [2.0, 3.0]]))
    tensor([1.0000, 2.8284, 3.0000])
    """
    rows, columns = torch.triu_indices(*matrix.shape)
    return matrix[rows, columns] * torch.where(rows == columns, 1.0, math.sqrt(2))


def symmetric(vector: Tensor) -> Tensor:
    """The symmetric matrix (K, K) of a vector from `triangle`.

    >>> symmetric(torch.tensor([1.0, 2 * 2**0.5, 3.0]))
    tensor([[1., 2.],
            [2., 3.]])
    """
    width = (math.isqrt(8 * len(vector) + 1) - 1) // 2
    rows, columns = torch.triu_indices(width, width)
    matrix = torch.zeros(width, width, dtype=vector.dtype)
    matrix[rows, columns] = vector / torch.where(rows == columns, 1.0, math.sqrt(2)).to(vector.dtype)
    return matrix + matrix.T - torch.diag(matrix.diagonal())


FLOOR = 0.5
"""The least eigenvalue, as a multiple of the largest expected one of noise alone: measured in docs/embeddings.md."""
LEAST = 0.03
"""The least eigenvalue, as a multiple of their mean, if there is almost no noise."""


def whitening(released: dict[str, Tensor], *, deviation: float) -> tuple[Tensor, Tensor]:
    """The map z -> A z + b, with A symmetric, positive definite, and with no eigenvalue below 1.

    A is the inverse square root of the scatter, scaled so that the direction of the largest scatter keeps its length:
    coordinates outside the map, of which nothing is known, are weighted like that direction. Eigenvalues of a symmetric
    noise matrix reach `deviation * sqrt(2 K)` (Wigner 1958); smaller ones than `FLOOR` times that are raised to it. So
    for pure noise A is the identity. The mean that b subtracts is shrunk by the share of noise in its square (James and
    Stein 1961), to zero if all of it is noise.

    Args:
        released: the noisy "scatter" (K (K + 1) / 2) and "mean" (K) of `ClippedScatters`, divided by the number of
            users.
        deviation: the standard deviation of the noise in each of these numbers.

    Returns:
        A (K, K) and b (K), float32.
    """
    scatter, mean = symmetric(released[SCATTER].cpu().double()), released[MEAN].cpu().double()
    width = len(mean)
    values, vectors = torch.linalg.eigh(scatter)
    floor = max(FLOOR * deviation * math.sqrt(2 * width), LEAST * float(values.mean()))
    if not math.isfinite(floor) or floor <= 0:  # no user has two images of one class, and there is no noise
        return torch.eye(width), torch.zeros(width)
    weights = values.clamp(min=floor).rsqrt()
    matrix = (vectors * (weights / weights.min())) @ vectors.T
    square = float(mean.square().sum())
    kept = max(0.0, 1 - width * deviation**2 / square) if square > 0 else 0.0
    return matrix.float(), (matrix @ mean * (-kept / MEAN_SHARE)).float()
