"""Forms of the per-example gradients of one use.

=============  ==========================================================  =======================================
form           norm                                                        weighted sum
=============  ==========================================================  =======================================
Instantiated   of the instantiated gradients                               of the instantiated gradients
Tiled          the same, computed while a tile is in the cache             of the tiles
Factored       certified: from Gram matrices, or from temporary tiles      the ordinary weight gradient, once, with
                                                                           each example's output gradients scaled
=============  ==========================================================  =======================================

`Factored` computes the sum separately from the norm, so the norm must cover the rounding of that computation. It adds
an allowance relative to the *reach* of an example, a bound on the sum of the absolute terms of its gradient. An example
whose terms cancel so much that the allowance would matter is *hard*: its norm is infinity, or it is instantiated by
itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from sfumato.gradients import clipping
from sfumato.gradients.use import (
    Instantiated,
    Kernel,
    Reach,
    RowMap,
    RowStatistics,
    Use,
    concatenate,
    concatenate_statistics,
    constants,
    rounding,
    row_statistics_of,
    slices,
    tolerance,
    unit_roundoff,
)

# Rounding of the Gram form in float64, relative to the square of the reach: covers dot products of 9,000 numbers.
_GRAM_ROUNDING = 1e-12
# The most that this rounding may add to a norm, relatively. In float32 `tolerance` is exceeded long before. The
# self-check in float64 (`selfcheck`) allows ten times as much.
GRAM_TOLERANCE = 1e-7
# The Gram form is timed only if it needs at most this many products, in float64, for each of the plain weight gradient.
MOST_GRAM_PRODUCTS = 2
# With norms outside this range, products of inputs or output gradients with a clip factor could overflow or vanish.
_PLAIN_RANGE = (1e-12, 1e12)


class KeepsHard(Protocol):
    """A contribution that can keep the gradients of hard examples."""

    def keep_hard(self, rows: Tensor) -> Tensor: ...


class SeparatesHard:
    """A use that computes its sum separately from its norms, except for hard examples, whose gradients it keeps.

    Subclasses implement `instantiate`, and `easy_sum` for the sum of all other examples.
    """

    _hard: tuple[Tensor, Tensor] | None = None

    def easy_sum(self, factors: Tensor, *, excluding: bool) -> Tensor:
        """The `use.Use.weighted_sum` of examples that are not hard."""
        raise NotImplementedError

    def instantiate(self, rows: Tensor | None = None) -> Tensor:
        """See `use.Use.instantiate`."""
        raise NotImplementedError

    def keep_hard(self, rows: Tensor) -> Tensor:
        """Keeps the gradients of examples `rows`, (b,) int64, for the sum, and returns their squared norms."""
        self._hard = rows, self.instantiate(rows)
        return clipping.squared_norms(self._hard[1])

    def weighted_sum(self, factors: Tensor, *, excluding: bool = True) -> Tensor:
        """See `use.Use.weighted_sum`."""
        if self._hard is None:
            return self.easy_sum(factors, excluding=excluding)
        rows, gradients = self._hard
        total = self.easy_sum(factors.index_fill(0, rows, 0), excluding=excluding)
        total += clipping.weighted_sum(gradients, factors[rows], excluding=excluding)
        return total


class Tiled(Instantiated):
    """Per-example gradients in tiles. Norms are computed immediately, while a tile is in the processor's cache.

    Args:
        kernel: the arithmetic of the map.
        x, g: inputs and output gradients (B*K, ...); not stored.
        method: the kernel's method of instantiating.
        derived: as in `row_statistics`, if the weight is a function of parameters.

    Attributes:
        coarse: whether inputs and output gradients were multiplied in bfloat16 or TF32.
    """

    def __init__(self, kernel: Kernel, x: Tensor, g: Tensor, method: str, derived: RowMap | None):
        tiles, squares, statistics = [], [], []
        for images in slices(x.shape[0] // kernel.views, kernel.gradient_elements(), kernel.views, on=x.device):
            tiles.append(kernel.instantiate(x[images], g[images], method))
            if derived is None:
                squares.append(clipping.squared_norms(tiles[-1]))
            else:
                statistics.append(row_statistics_of(tiles[-1], derived))
        super().__init__(*tiles)
        self.coarse = x.dtype == torch.bfloat16 or unit_roundoff(x, convolution=not kernel.joins) > 2.0**-24
        self._statistics = concatenate_statistics(statistics) if statistics else None
        if squares:
            self._squares = concatenate(squares)

    def row_statistics(self, rows: RowMap) -> RowStatistics:
        return super().row_statistics(rows) if self._statistics is None else self._statistics


class Factored(SeparatesHard):
    """Inputs and output gradients. No per-example gradient is kept after its norm is computed.

    Args:
        kernel: the arithmetic of the map.
        x, g: inputs and output gradients (B*K, ...).
        method: "gram", or the kernel's method of instantiating temporary tiles.
        derived: as in `row_statistics`, if the weight is a function of parameters.
        y: the map's outputs (B*K, ...) with the bias added, if available.
        bias: (out,), or None.
        later: whether to compute norms only on request, because other uses of the tensor will be added.

    **Guarantee.** `squared_norms` bounds the square of the norm of the example's term in `weighted_sum`, provided that
    the error of a float32 (or float64) weight gradient is at most `rounding`, which is relative to the sum of its
    absolute terms. If this allowance exceeds `tolerance` of the norm, or the rounding of the Gram form exceeds
    `GRAM_TOLERANCE`, the norm is infinity, so the example's factor can only be zero; or the example's gradient is kept
    (`keep_hard`), and its bound holds unconditionally. So a finite norm is too large by at most these two, relatively.
    """

    def __init__(
        self,
        kernel: Kernel,
        x: Tensor,
        g: Tensor,
        method: str,
        *,
        derived: RowMap | None = None,
        y: Tensor | None = None,
        bias: Tensor | None = None,
        later: bool = False,
    ):
        self.kernel, self.x, self.g = kernel, x, g
        self._method, self._y, self._bias = method, y, bias
        self._dtype = clipping.accumulation_dtype(x.dtype)
        self._statistics: RowStatistics | None = None
        if not later:
            _ = (self._squares, self._factor_norms) if derived is None else self.row_statistics(derived)

    @staticmethod
    def join(uses: list[Factored]) -> Factored | None:
        """Joins several uses of one weight into one with more positions; None if the kernel cannot."""
        kernel = uses[0].kernel
        if not kernel.joins:
            return None
        x, g = torch.cat([use.x for use in uses], dim=1), torch.cat([use.g for use in uses], dim=1)
        return Factored(kernel, x, g, "gram" if kernel.gram_pays(x, g) else kernel.methods()[0])

    @property
    def _examples(self) -> int:
        return self.x.shape[0] // self.kernel.views

    def _parts(self, each: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields (x, g) in tiles of examples, in float32 at least, with `each` numbers per example."""
        for images in slices(self._examples, each, self.kernel.views, on=self.x.device):
            yield self.x[images].to(self._dtype), self.g[images].to(self._dtype)

    @cached_property
    def _factor_norms(self) -> tuple[Tensor, Tensor]:
        """(B,) and (B,): norms of each example's inputs and output gradients."""
        x, g = (clipping.exact_norms(t.reshape(self._examples, -1)) for t in (self.x, self.g))
        return x, g

    def _rounding(self, reach: Reach) -> Reach:
        like, positions = self.g[:0].to(self._dtype), self.kernel.positions(self.g)
        return rounding(reach, like, positions, convolution=not self.kernel.joins)

    def _sums_of_squares(self, scales: Tensor | None = None) -> Tensor:
        """(B,) float64: squared norms of the gradients, or of gradients with scaled rows, up to float64's rounding."""
        kernel = self.kernel
        if self._method == "gram":
            return concatenate(
                [
                    kernel.squares_by_gram(x, g if scales is None else kernel.scaled(g.double(), scales))
                    for x, g in self._parts(kernel.gram_elements(self.x, self.g))
                ]
            )
        tiles = (kernel.instantiate(x, g, self._method) for x, g in self._parts(kernel.gradient_elements()))
        if scales is None:
            return concatenate([clipping.squared_norms(tile) for tile in tiles])
        return concatenate([(clipping.squared_lengths(tile.flatten(2)) * scales.square()).sum(1) for tile in tiles])

    @cached_property
    def _squares(self) -> Tensor:
        """(B,): squared norms without certification."""
        return self._sums_of_squares()

    def squared_norms(self) -> Tensor:
        return certified([self])[0]

    def easy_sum(self, factors: Tensor, *, excluding: bool) -> Tensor:
        images = factors.repeat_interleave(self.kernel.views) if self.kernel.views > 1 else factors
        x, g = ((clipping.without_excluded(t, images) if excluding else t).to(self._dtype) for t in (self.x, self.g))
        return self.kernel.total(x, g * images.to(self._dtype).reshape(-1, *[1] * (g.dim() - 1)))

    def instantiate(self, rows: Tensor | None = None) -> Tensor:
        x, g, kernel = self.x, self.g, self.kernel
        if rows is not None:
            x, g = (t.unflatten(0, (self._examples, -1))[rows].flatten(0, 1) for t in (x, g))
        method = "any" if self._method == "gram" else self._method
        parts = slices(len(x) // kernel.views, kernel.gradient_elements(), kernel.views, on=x.device)
        return concatenate([kernel.instantiate(x[i].to(self._dtype), g[i].to(self._dtype), method) for i in parts])

    def row_statistics(self, rows: RowMap) -> RowStatistics:
        if self._statistics is None:
            self._statistics = self._compute_row_statistics(rows)
        return self._statistics

    def _compute_row_statistics(self, rows: RowMap) -> RowStatistics:
        kernel, y, bias = self.kernel, self._y, self._bias
        x, g = self.x.to(self._dtype), self.g.to(self._dtype)
        by_row = kernel.row_squares(g)
        pulled = (by_row @ rows.sizes.square()).sqrt()
        valid = in_range(*self._factor_norms)
        reach = (kernel.spread() * self._factor_norms[0] * pulled).masked_fill_(~valid, torch.inf)
        if self._method != "gram":
            tiles = (kernel.instantiate(x, g, self._method) for x, g in self._parts(kernel.gradient_elements()))
            statistics = concatenate_statistics([row_statistics_of(tile, rows) for tile in tiles])
            return statistics._replace(rounding=self._rounding(reach))
        if y is not None and bias is not None:
            shares = bias.double().abs() / rows.values.flatten(1).double().norm(dim=1)
            # Allow for digits lost by adding the bias, and for the dot products; this check never waits for a device.
            if y.device.type == "cpu" and bool((shares <= 1).all()):
                reach = reach + shares.max() * kernel.positions(self.g) ** 0.5 * pulled
            else:
                y = None
        if y is None:
            y, bias = kernel.apply(x, rows.values.to(self._dtype)), None
        dots, sums = kernel.output_dots(y.to(self._dtype), g, bias), kernel.input_sums(x, g)
        squares = self._sums_of_squares(rows.scales).clamp_min(0)
        lengths = torch.linalg.vector_norm(rows.values.flatten(1).double(), dim=1)
        outputs = kernel.spread() * self._factor_norms[0].unsqueeze(1) * by_row.sqrt() * lengths
        return RowStatistics(
            squares=squares,
            dots=dots,
            sums=sums,
            rounding=self._rounding(reach),
            dots_rounding=rounding(outputs, g[:0], kernel.fan_in(), convolution=not kernel.joins),
        )

    def bytes(self) -> int:
        return sum(t.nbytes for t in (self.x, self.g))


def in_range(x: Tensor, g: Tensor) -> Tensor:
    """Whether products with clip factors neither overflow nor vanish, given norms of inputs and output gradients."""
    inside = (torch.minimum(x, g) > _PLAIN_RANGE[0]) & (torch.maximum(x, g) < _PLAIN_RANGE[1])
    return inside | (x * g == 0)


def certified(uses: list[Factored], *, synchronize: bool = False) -> Tensor:
    """(S, B) float64: the squared norms of S uses, each as guaranteed by `Factored`, computed by shared kernels.

    Args:
        synchronize: find out which examples are hard, and keep their gradients.
    """
    stacked = zip(*((use._squares, *use._factor_norms) for use in uses), strict=True)
    squares, x, g = (torch.stack(values) for values in stacked)
    on = squares.device
    spread = constants(tuple(use.kernel.spread() * (1 + 1e-9) for use in uses), on)[:, None]
    allowance = constants(tuple(use._rounding(1.0) for use in uses), on)[:, None]
    most = constants(tuple(1 + tolerance(use._dtype) for use in uses), on)[:, None]
    of_gram = constants(tuple(_GRAM_ROUNDING if use._method == "gram" else 0.0 for use in uses), on)[:, None]
    reach = spread * x * g
    squares = squares.clamp_min_(0)
    norms = (squares + of_gram * reach.square()).sqrt_()
    bound = norms + allowance * reach
    certain = (bound <= most * norms) & (norms <= (1 + GRAM_TOLERANCE) * squares.sqrt())
    hard = ~(certain & in_range(x, g))
    bounds = bound.square_().masked_fill_(hard, torch.inf)
    return replace_hard(bounds, hard, uses) if synchronize else bounds


def replace_hard(squares: Tensor, hard: Tensor, uses: Sequence[KeepsHard]) -> Tensor:
    """The squared norms (S, B), with those of hard examples replaced by the norms of their kept gradients."""
    for place, row in enumerate(hard.any(dim=1).tolist() if bool(hard.any()) else []):
        if row:
            rows = hard[place].nonzero()[:, 0]
            squares[place, rows] = uses[place].keep_hard(rows)
    return squares


def combine(uses: list[Use]) -> Use:
    """Combines all uses of one tensor: their gradients add up before the norm is taken."""
    if len(uses) == 1:
        return uses[0]
    kind = type(uses[0])
    if hasattr(kind, "join") and all(type(use) is kind for use in uses):
        joined = kind.join(uses)  # type: ignore[attr-defined]
        if joined is not None:
            return joined
    total = uses[0].instantiate().clone()
    for use in uses[1:]:
        total += use.instantiate()
    return Instantiated(total)
