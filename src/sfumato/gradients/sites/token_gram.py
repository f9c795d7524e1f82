"""Linear maps over T tokens on a device: norms from Gram matrices in the operands' own type, nothing instantiated.

``|G_b|^2 = sum_tt' (a_t . a_t') (g_t . g_t')`` needs T x T numbers per example where G_b needs d x p. The sum is one
ordinary product of g with the activations, each scaled by its example's factor.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sfumato.gradients import clipping, products
from sfumato.gradients.sites.forms import GRAM_TOLERANCE, SeparatesHard, in_range, replace_hard
from sfumato.gradients.use import Kernel, RowMap, RowStatistics, constants, rounding, row_statistics_of

TOLERANCES = {torch.bfloat16: 0.25, torch.float64: GRAM_TOLERANCE}
"""For each type with this form, the relative excess of the bound over the computed norm above which an example is hard.

The allowance of float32 would be too large for an exact sum."""


class TokenGram(SeparatesHard):
    """The per-example gradients of a weight (d, p) used at T positions (`use.Use`).

    Args:
        kernel: the arithmetic of the map.
        x, g: inputs (B, T, p) and output gradients (B, T, d), of one type.

    **Guarantee.** `squared_norms` bounds the square of the norm of the example's term in `weighted_sum`, as computed.
    Let ``s = sum_t |a_t| |g_t|``. The entries of the Gram matrices are dot products of p and of d numbers. Their error
    is at most `products.dot_error_bound` times the lengths, so the error of the square is at most that of p + d terms
    times s^2, which is added. The sum uses activations that were scaled and rounded again. In float64 this costs
    `use.rounding`; in bfloat16, whose products are exact in float32, at most 2^-8 of each activation. With e the
    rounding errors of the activations, ``|sum_t g_t e_t^T|`` is at most 2^-8 s, and also at most ``|g|_2 |e|``, where
    the spectral norm of the output gradients is at most the square root of the Frobenius norm of their Gram matrix. The
    smaller of the two is added, and `products.dot_error_bound` of T terms times s for the additions. If the bound
    exceeds the norm by more than `TOLERANCES`, or a value is out of range, the example counts as hard and is
    instantiated by itself (`keep_hard`).
    """

    def __init__(self, kernel: Kernel, x: Tensor, g: Tensor):
        self.kernel, self.x, self.g = kernel, x, g
        of_x, of_g = products.gram(x), products.gram(g)
        x_tokens, g_tokens = (one.diagonal(dim1=1, dim2=2).clamp_min(0) for one in (of_x, of_g))
        self.statistics = (
            (of_x * of_g).sum(dim=(1, 2), dtype=torch.float64),
            (x_tokens * g_tokens).sqrt_().sum(dim=1, dtype=torch.float64),
            x_tokens.sum(dim=1, dtype=torch.float64),
            g_tokens.sum(dim=1, dtype=torch.float64),
            torch.linalg.vector_norm(of_g, dim=(1, 2), dtype=torch.float64),
        )
        """(B,) each: the squared norms of the gradients, s, ``|x|^2``, ``|g|^2``, and the Frobenius norm of the Gram
        matrix of g."""

    def allowances(self) -> tuple[float, float, float]:
        """The error bound `products.dot_error_bound` of the Gram matrices, and the norm's allowances relative to s:
        that of the additions and that of rounded activations."""
        of_grams, positions = products.dot_error_bound(self.x.shape[2] + self.g.shape[2] + 8, self.x), self.g.shape[1]
        if self.x.dtype != torch.bfloat16:
            return of_grams, rounding(1.0, self.g[:0], positions), 0.0
        return of_grams, products.dot_error_bound(positions, self.x), products.SCALING * (1 + 2.0**-7)

    def squared_norms(self) -> Tensor:
        return certified([self])[0]

    def easy_sum(self, factors: Tensor, *, excluding: bool) -> Tensor:
        x, g = (clipping.without_excluded(t, factors) if excluding else t for t in (self.x, self.g))
        return self.kernel.total(products.scaled(x, factors), g)

    def instantiate(self, rows: Tensor | None = None) -> Tensor:
        x, g = (self.x, self.g) if rows is None else (self.x[rows], self.g[rows])
        return self.kernel.instantiate(x, g, "any")

    def row_statistics(self, rows: RowMap) -> RowStatistics:
        return row_statistics_of(self.instantiate(), rows)

    def bytes(self) -> int:
        return self.x.nbytes + self.g.nbytes


def certified(uses: list[TokenGram], *, synchronize: bool = False) -> Tensor:
    """(S, B) float64: the squared norms of S uses, each as guaranteed by `TokenGram`; infinity for hard examples.

    Args:
        synchronize: find out which examples are hard, and keep their gradients.
    """
    squares, terms, x, g, spread = (torch.stack(each) for each in zip(*(use.statistics for use in uses), strict=True))
    numbers = zip(*((*use.allowances(), 1 + TOLERANCES[use.x.dtype]) for use in uses), strict=True)
    of_grams, of_sums, of_rounding, most = (constants(values, squares.device)[:, None] for values in numbers)
    spare = 1 + 4 * of_grams  # the computed lengths are rounded too
    terms, x, g, squares = terms * spare, x.sqrt_(), g.sqrt_(), squares.clamp_min_(0)
    allowance = of_sums * terms + of_rounding * torch.minimum(terms, x * spread.sqrt_() * spare)
    bound = (squares + of_grams * terms.square()).sqrt_() + allowance
    hard = ~((bound <= most * squares.sqrt()) & in_range(x, g))
    bounds = bound.square_().masked_fill_(hard, torch.inf)
    return replace_hard(bounds, hard, uses) if synchronize else bounds
