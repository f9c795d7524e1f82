"""What whitening asks of the private data, once, and the map that it makes of the noisy answer.

All of it is post-processing of one release and of public constants.
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
"""By what a user's mean is multiplied where it stands beside the scatter: both then have about the same norm."""


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

    S_u is the mean over all images of the user of (z - c)(z - c)^T, c the mean of the user's images of the same class;
    m_u is the mean of all of them. Both are means, so nobody counts for more by having more images. S_u is symmetric
    and goes into the vector as its upper triangle, off-diagonal entries times the square root of 2: then the vector's
    L2 norm is the matrix's Frobenius norm.

    Args:
        width: K, of z.
        max_norm: C, the bound on the L2 norm of S_u and `MEAN_SHARE` m_u together.

    **Guarantee.** Unit: a user, with all of their records; adjacency: add or remove one, or let one contribute
    nothing. A user's vector is a function of that user's own records and of public constants, its norm is at most C as
    computed (`clipping.clip_factors`, with room for the grid's rounding), and it stands in the sum once: so the sum
    moves by at most C in L2 norm. A vector with anything not finite counts as zero. Replacing one user by another
    would move it by 2 C, and is not offered. That all of a user's records come in one call, and in one alone, is for
    the caller to see to (`WhiteningSteps`).
    """

    width: int
    max_norm: float = 1.0

    def __post_init__(self) -> None:
        positive_integer("width", self.width)
        positive("max_norm", self.max_norm)

    @property
    def sums_over(self) -> Literal["users"]:
        """Users: each one's vector is clipped."""
        return "users"

    def sensitivity(self, adjacency: str) -> float:
        """How far one user can move the sum in L2 norm: C."""
        one_of("adjacency", adjacency, ADJACENCIES)
        return self.max_norm

    def zeros(self) -> dict[str, Tensor]:
        """The sum over no users."""
        return {SCATTER: torch.zeros(self.width * (self.width + 1) // 2), MEAN: torch.zeros(self.width)}

    @torch.no_grad()
    def __call__(self, vectors: Tensor, labels: Tensor) -> ScatterSum:
        """The clipped vector of one user.

        Args:
            vectors: z of all of the user's records, (n, K).
            labels: (n,) int64, the class of each.
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
    """The symmetric matrix (K, K) of such a vector.

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
