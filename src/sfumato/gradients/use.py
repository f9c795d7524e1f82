"""Per-example gradients of one tensor from one use of it: the interface of a use, and its plain form."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property, lru_cache
from typing import ClassVar, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from sfumato.gradients import clipping

# Numbers in one tile of per-example gradients: a few megabytes, which stay in a core's cache.
TILE = 1 << 20
# The same on a device, where a few large kernels are faster than many small ones: half a gigabyte.
DEVICE_TILE = 1 << 27
# Bound on the rounding error of a weight gradient, in rounding units of the type, relative to the sum of its absolute
# terms: a constant, plus one for every 256 positions. Errors of 71 units were measured with 65,536 positions, and of
# 3,200 with a million.
_ALLOWED_ROUNDINGS, _POSITIONS_PER_ROUNDING = 4, 256


Reach = TypeVar("Reach", Tensor, float)


class RowMap(NamedTuple):
    """A tensor V whose rows are each a function of one row of a parameter, as a use needs to know it.

    Attributes:
        values: (rows, ...), V itself.
        scales: (rows,) float64, s of `derived`.
        sizes: (rows,) float64, upper bounds on the norm of the map that pulls a row's gradient back.
        precomputed: (rows, 2) float64, the squares of scales and sizes, if already computed.
    """

    values: Tensor
    scales: Tensor
    sizes: Tensor
    precomputed: Tensor | None = None

    @property
    def squared(self) -> Tensor:
        """(rows, 2): the squares of scales and sizes."""
        return torch.stack([self.scales, self.sizes], dim=1).square_() if self.precomputed is None else self.precomputed


class RowStatistics(NamedTuple):
    """Statistics for the norm of a pulled-back gradient, from per-example gradients G of a tensor with rows v_i.

    Attributes:
        squares: (B,) float64, ``sum_i s_i^2 |G_bi|^2``.
        dots: (B, rows), ``G_bi . v_i``.
        sums: (B, rows), ``G_bi . 1``.
        rounding: (B,) float64, bound on the error of `weighted_sum` and of the dot products, as a norm after the
            pull-back.
        dots_rounding: (B, rows) float64, bound on the additional error of `dots`.
    """

    squares: Tensor
    dots: Tensor
    sums: Tensor
    rounding: Tensor
    dots_rounding: Tensor


class Use(Protocol):
    """Per-example gradients of one tensor from one use of it, in whatever form is cheapest.

    Methods:
        squared_norms: (B,) float64, never smaller than the square of the term that `weighted_sum` adds for the example
            with factor 1; not finite where this cannot be certified.
        weighted_sum: ``sum_b factors_b G_b``, of the tensor's shape, float32 at least. `factors` are (B,); `excluding`
            says whether some are zero because their examples must not be multiplied (`clipping.weighted_sum`).
        instantiate: (B, *shape), the per-example gradients themselves, or those of the examples `rows`.
        row_statistics: statistics for a tensor that is itself a function of parameters.
        bytes: memory held.
    """

    def squared_norms(self) -> Tensor: ...
    def weighted_sum(self, factors: Tensor, *, excluding: bool = True) -> Tensor: ...
    def instantiate(self, rows: Tensor | None = None) -> Tensor: ...
    def row_statistics(self, rows: RowMap) -> RowStatistics: ...
    def bytes(self) -> int: ...


@lru_cache(maxsize=256)
def constants(values: tuple[float, ...], device: torch.device) -> Tensor:
    """The given numbers in float64, copied to a device once."""
    return torch.tensor(values, dtype=torch.float64, device=device)


def unit_roundoff(tensor: Tensor, *, convolution: bool = False) -> float:
    """The rounding unit of matrix products, or of convolutions, of tensors like this one.

    It may be coarser than the type's: on CUDA, torch's convolutions use TF32 by default; its matrix products do not.
    """
    if tensor.dtype == torch.float64:
        return torch.finfo(torch.float64).eps / 2
    try:
        unit = {"highest": 2.0**-24, "high": 2.0**-11, "medium": 2.0**-8}[torch.get_float32_matmul_precision()]
    except RuntimeError:  # raised if the precisions were set separately for each backend
        return 2.0**-8
    of_products, of_convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    if tensor.device.type == "cuda" and (of_products.allow_tf32 or (convolution and of_convolutions.allow_tf32)):
        unit = max(unit, 2.0**-11)
    return unit


def tolerance(dtype: torch.dtype) -> float:
    """The largest rounding allowance relative to the norm; an example that needs more is computed again."""
    return 3e-10 if dtype == torch.float64 else 5e-5


def rounding(reach: Reach, like: Tensor, positions: int, *, convolution: bool = False) -> Reach:
    """A bound on the error of a computed weight gradient, as a norm.

    Args:
        reach: (B,) bounds on the sums of the absolute terms.
        like: one of the factors, for its type and device.
        positions: the number of terms of an example's gradient.
        convolution: whether a convolution kernel computes the gradient, rather than a matrix product.
    """
    unit = unit_roundoff(like, convolution=convolution)
    return (_ALLOWED_ROUNDINGS + positions / _POSITIONS_PER_ROUNDING) * unit * reach


def concatenate(parts: list[Tensor] | tuple[Tensor, ...]) -> Tensor:
    """Concatenates the values of some examples at a time to those of all examples, (B, ...)."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)


class Instantiated:
    """Instantiated per-example gradients (B, *shape): the plain form.

    Args:
        tiles: one tensor of all examples, or several (b, *shape) with equally many examples each, except for the last.
    """

    def __init__(self, *tiles: Tensor):
        self._tiles = tiles

    @cached_property
    def _squares(self) -> Tensor:
        return concatenate([clipping.squared_norms(tile) for tile in self._tiles])

    def squared_norms(self) -> Tensor:
        return self._squares

    def weighted_sum(self, factors: Tensor, *, excluding: bool = True) -> Tensor:
        first, *others = self._tiles
        if not others:
            return clipping.weighted_sum(first, factors, excluding=excluding)
        parts = factors.split([tile.shape[0] for tile in self._tiles])
        total = clipping.weighted_sum(first, parts[0], excluding=excluding)
        for tile, part in zip(others, parts[1:], strict=True):
            total += clipping.weighted_sum(tile, part, excluding=excluding)
        return total

    def instantiate(self, rows: Tensor | None = None) -> Tensor:
        if rows is None:
            return concatenate(self._tiles)
        size = self._tiles[0].shape[0]
        if len(self._tiles) == 1:
            return self._tiles[0][rows]
        return torch.stack([self._tiles[row // size][row % size] for row in rows.tolist()])

    def row_statistics(self, rows: RowMap) -> RowStatistics:
        return concatenate_statistics([row_statistics_of(tile, rows) for tile in self._tiles])

    def bytes(self) -> int:
        return sum(tile.nbytes for tile in self._tiles)


class Exact(Instantiated):
    """Per-example gradients (B, *shape) whose norms and sums are computed in float64, whatever their size."""

    @cached_property
    def _squares(self) -> Tensor:
        return concatenate([clipping.exact_squared_norms(tile) for tile in self._tiles])

    def weighted_sum(self, factors: Tensor, *, excluding: bool = True) -> Tensor:
        return clipping.exact_weighted_sum(self.instantiate(), factors)


def row_statistics_of(gradients: Tensor, rows: RowMap) -> RowStatistics:
    """The row statistics of per-example gradients (b, rows, ...) that are summed as they are."""
    values = rows.values
    if gradients.dim() > 2:
        last = clipping.memory_order(gradients, 2)  # nothing is copied
        gradients, values = gradients.permute(0, 1, *last), values.permute(0, *(axis - 1 for axis in last))
    each = gradients.flatten(2) if gradients.dim() > 2 else gradients.unsqueeze(-1)
    squares = clipping.squared_lengths(each)
    scaled, pulled = (squares @ rows.squared).unbind(1)
    return RowStatistics(
        squares=scaled,
        dots=(each * values.reshape(each.shape[1:])).sum(dim=-1),
        sums=each.sum(dim=-1),
        # No tensor cores are involved: the sum multiplies by factors, and the pull-back works number by number.
        rounding=_ALLOWED_ROUNDINGS * torch.finfo(each.dtype).eps / 2 * pulled.sqrt(),
        dots_rounding=constants((0.0,), each.device).expand_as(squares),
    )


def concatenate_statistics(parts: list[RowStatistics]) -> RowStatistics:
    """Concatenates the statistics of all tiles."""
    return parts[0] if len(parts) == 1 else RowStatistics(*map(torch.cat, zip(*parts, strict=True)))


class Kernel(Protocol):
    """The arithmetic of one linear map of a weight (out, ...), used at T positions of each example.

    The first axis of inputs ``x`` and output gradients ``g`` is that of examples and views, (B*K, ...).

    Attributes:
        joins: whether the second axis of x and g is that of positions, so that uses of one weight can be joined there.
        views: K; the views of one example follow each other.

    Methods:
        instantiate: (b, *shape), per-example gradients.
        total: the ordinary gradient of the weight, summed over examples.
        squares_by_gram: (b,) float64, ``sum_tt' (a_t . a_t') (g_t . g_t')``, in float64 throughout.
        spread: an upper bound on ``sum_t |a_t| |g_t|`` over ``|x| |g|``, where a_t is the input of position t.
        positions: T, over all views together.
        gradient_elements: the number of elements of one per-example gradient.
        fan_in: the number of elements of one row of the weight.
        methods: the methods of `instantiate` that are available here, the default first.
        has_gram: whether `squares_by_gram` is available.
        gram_pays: whether it is available and does not need far more arithmetic than the gradients themselves.
        gram_surely_pays: whether it needs so much less arithmetic, by the same products, that no timing is necessary.
        gram_elements: the number of elements that `squares_by_gram` writes for one example.
        row_squares: (b, out) float64, squared norms of each example's output gradients, by output channel.
        scaled: output gradients multiplied by a factor for each output channel.
        applied: the map applied to the inputs, without a bias.
        output_dots: (b, out) float64, ``sum_t g_to (y_to - bias_o)``.
        input_sums: (b, out) float64, ``sum_t g_to (a_t . 1)``, the row sums of the gradients.
    """

    joins: ClassVar[bool]

    @property
    def views(self) -> int: ...
    def instantiate(self, x: Tensor, g: Tensor, method: str) -> Tensor: ...
    def total(self, x: Tensor, g: Tensor) -> Tensor: ...
    def squares_by_gram(self, x: Tensor, g: Tensor) -> Tensor: ...
    def spread(self) -> float: ...
    def positions(self, g: Tensor) -> int: ...
    def gradient_elements(self) -> int: ...
    def fan_in(self) -> int: ...
    def methods(self) -> tuple[str, ...]: ...
    def has_gram(self) -> bool: ...
    def gram_pays(self, x: Tensor, g: Tensor) -> bool: ...
    def gram_surely_pays(self, x: Tensor, g: Tensor) -> bool: ...
    def gram_elements(self, x: Tensor, g: Tensor) -> int: ...
    def row_squares(self, g: Tensor) -> Tensor: ...
    def scaled(self, g: Tensor, scales: Tensor) -> Tensor: ...
    def apply(self, x: Tensor, weight: Tensor) -> Tensor: ...
    def output_dots(self, y: Tensor, g: Tensor, bias: Tensor | None) -> Tensor: ...
    def input_sums(self, x: Tensor, g: Tensor) -> Tensor: ...


def slices(examples: int, each: int, views: int = 1, *, on: torch.device) -> Iterator[slice]:
    """Slices over the images of the examples (K = views of each) such that a tile holds `each` numbers per example.

    Tiles are of similar sizes, and give every thread the same number of examples.
    """
    tile, threads = (TILE, torch.get_num_threads()) if on.type == "cpu" else (DEVICE_TILE, 1)
    step = max(1, tile // max(1, each))
    step = round(step / threads) * threads or step
    count = max(1, -(-examples // step))
    step = -(-examples // (count * threads)) * threads if step >= threads else -(-examples // count)
    return (slice(start * views, min(start + step, examples) * views) for start in range(0, examples, max(1, step)))
