"""The arithmetic of clipping: squared norms, clip factors, weighted sums.

For per-example gradients ``G_b`` and a clipping norm ``C`` the clipped sum is ``sum_b min(1, C / |G_b|) G_b`` (Abadi et
al. 2016, arXiv 1607.00133, algorithm 1). Three measures make the bound hold in floating point:

- Squares are summed in pieces, and the pieces in float64. A bound on the rounding error is added, so a computed norm is
  never too small.
- A factor is ``C (1 - 4 epsilon - a) / |G_b|``, with ``epsilon`` the machine epsilon of the sums' type and ``a`` the
  allowance of the grid (`grid`). The margin covers the rounding of the products that follow.
- An example with a value that is not finite has the factor zero, and its rows are replaced by zeros before any product
  (``0 * NaN`` would be ``NaN``).

No function here branches on a value, so the host never waits for a device. An example that the fast arithmetic cannot
certify has the norm infinity and is `doubtful`: the exact functions of this module compute it again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache

import torch
from torch import Tensor

from sfumato import _devices
from sfumato.gradients import grid

# Numbers that are squared and summed in their own type before float64 takes over, on a CPU, where they are contiguous,
# and on a device, where more pieces cost little and a hard example costs much.
_PIECE, _DEVICE_PIECE = 64, 16
# Elements converted to float64 at a time: the buffer stays in a core's cache instead of being fresh memory.
_BLOCK = 1 << 17
# With smaller factors, a float32 product of factor and gradient could lose digits to gradual underflow.
_SMALLEST_SAFE_FACTOR = 1e-30


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type in which gradients of parameters of the given type are summed: at least float32."""
    return torch.promote_types(dtype, torch.float32)


def zeros(parameter: Tensor) -> Tensor:
    """The sum of no gradients of a parameter."""
    return torch.zeros_like(parameter.detach(), dtype=accumulation_dtype(parameter.dtype))


def _longest(device: torch.device) -> int:
    return _DEVICE_PIECE if _devices.has_device_forms(device) else _PIECE


def margin(dtype: torch.dtype, device: torch.device) -> float:
    """The relative amount that `squared_lengths` adds to a sum of squares for its rounding."""
    return (_longest(device) + 4) * torch.finfo(dtype).eps / 2


def squared_norms(values: Tensor) -> Tensor:
    """Squared L2 norm of each example's values: `squared_lengths` over all of their axes.

    Args:
        values: (B, ...), any real floating type.

    Returns:
        (B,) float64.
    """
    return squared_lengths(_rows(values))


def squared_lengths(values: Tensor) -> Tensor:
    """Squared L2 norms along the last axis, never too small; not finite where squares overflow.

    Pieces of 64 numbers (16 on a device) are summed in the values' own type, which is as fast as memory; the pieces are
    summed in float64. No term is negative, so in any order of summation the relative error of a piece is below 65 (17)
    roundings. This much is added, and 2e-38 for each number in float32, more than the square of a tiny number can lose.

    Args:
        values: (..., n), any real floating type.

    Returns:
        (...) float64.

    >>> round(float(squared_lengths(torch.tensor([3.0, 4.0])).sqrt()), 4)
    5.0
    """
    values = values.to(accumulation_dtype(values.dtype))
    width = values.shape[-1]
    if values.numel() == 0:
        return torch.zeros(values.shape[:-1], dtype=torch.float64, device=values.device)
    longest = _longest(values.device)
    piece = next((size for size in range(longest, longest // 2, -1) if width % size == 0), longest)
    whole = width // piece * piece
    # On a CPU a piece is contiguous; on a device it takes one number of each stretch, for neighbouring threads.
    last = -2 if _devices.has_device_forms(values.device) and width > longest else -1
    pieces = values[..., :whole].unflatten(-1, (-1, piece) if last == -1 else (piece, -1))
    parts = [(values, -1)] if width <= longest else [(pieces, last)]
    if 0 < whole < width:
        parts.append((values[..., whole:], -1))
    total, spare = (
        _number(2 * width * torch.finfo(values.dtype).tiny, values.device),
        1 + margin(values.dtype, values.device),
    )
    for part, axis in parts:
        lengths = torch.linalg.vector_norm(part, dim=axis)
        by_piece = lengths.dim() == values.dim()
        lengths = lengths.double() if not by_piece else torch.linalg.vector_norm(lengths, dim=-1, dtype=torch.float64)
        total = torch.addcmul(total, lengths, lengths, value=spare)
    return total


@lru_cache(maxsize=256)
def _number(value: float, device: torch.device) -> Tensor:
    """() float64, copied to a device once."""
    return torch.tensor(value, dtype=torch.float64, device=device)


def exact_squared_norms(values: Tensor) -> Tensor:
    """`squared_norms` in float64, which holds the squares of all of float32; zero where all numbers are zero."""
    elements = math.prod(values.shape[1:])
    return exact_norms(values).square_().mul_(1 + 2.0**-52 * (elements + 4))


def exact_norms(values: Tensor) -> Tensor:
    """L2 norms of each example's values (B, ...), summed in float64, with no allowance for rounding: (B,) float64."""
    rows = _rows(values)
    if values.device.type != "cpu":
        return torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    width = _BLOCK // max(1, len(rows)) + 1
    norms = [torch.linalg.vector_norm(block.double(), dim=1) for block in rows.split(width, dim=1)]
    return norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms), dim=0)


def _rows(values: Tensor) -> Tensor:
    """(B, n): each example's values, in memory order."""
    return values.permute(0, *memory_order(values)).reshape(values.shape[0], math.prod(values.shape[1:]))


def memory_order(values: Tensor, first: int = 1) -> list[int]:
    """The axes from `first` on, in memory order; by default all axes but that of the examples."""
    return sorted(range(first, values.dim()), key=values.stride, reverse=True)


def _shaped(row: Tensor, like: Tensor) -> Tensor:
    """One example's numbers (n,), flattened as by `_rows`, in the shape of an example of `like`."""
    axes = memory_order(like)
    return row.reshape([like.shape[axis] for axis in axes]).permute([axes.index(axis) for axis in range(1, like.dim())])


def clip_factors(
    squares: Tensor,
    losses: Tensor,
    *,
    max_norm: float,
    of: Iterable[Tensor],
) -> Tensor:
    """``min(1, C / norm)`` for each example, rounded down; zero for an example that is not finite.

    Args:
        squares: (B,) float64, squared norms of the whole per-example gradients.
        losses: (B,), the per-example losses; a loss that is not finite excludes its example.
        max_norm: the clipping norm ``C``.
        of: one tensor for each parameter, of the shape and type of an example's gradient. Their total number of
            elements determines the rounding of sums on the grid (`grid`), and the coarsest type that of weighted sums.

    Returns:
        (B,) float64. A factor of exactly zero excludes the example.

    **Guarantee.** One example's term of a weighted sum with these factors has an L2 norm of at most ``C``. Its exact
    value is at most ``C (1 - 4 epsilon - a)``; two roundings of relative size ``epsilon / 2`` each follow, and ``a C``
    is reserved for the rounding of sums on the grid (`grid.allowance`). A weight of at most 1 makes no factor larger.
    """
    like = list(of)
    elements = sum(tensor.numel() for tensor in like)
    dtype = max((accumulation_dtype(tensor.dtype) for tensor in like), key=lambda kind: torch.finfo(kind).eps)
    bound = max_norm * (1 - 4 * torch.finfo(dtype).eps - grid.allowance(elements))
    factors = squares.sqrt().reciprocal_().mul_(bound).clamp_max_(1.0)
    finite = (squares + losses).abs() < math.inf  # a sum is finite only if all of its terms are
    return factors.masked_fill_(~finite, 0.0)


def doubtful(factors: Tensor, weights: Tensor | None = None) -> Tensor:
    """(B,) bool: the examples that the fast arithmetic cannot certify and that must be computed again exactly.

    These are the examples with a value that is not finite, including a norm that was not certified, and the examples
    whose factor is so small that its product with a gradient must be formed in float64.

    Args:
        factors: (B,) float64, from `clip_factors`.
        weights: (B,) float64, by which the factors will be multiplied; 0 for padding.
    """
    unsure = factors < _SMALLEST_SAFE_FACTOR
    return unsure if weights is None else unsure | ((weights > 0) & (factors * weights < _SMALLEST_SAFE_FACTOR))


def without_excluded(values: Tensor, factors: Tensor) -> Tensor:
    """The values (B, ...), with zeros for examples whose factor is zero."""
    return torch.where((factors != 0).reshape(-1, *[1] * (values.dim() - 1)), values, values.new_zeros(()))


def weighted_sum(values: Tensor, factors: Tensor, *, excluding: bool = True) -> Tensor:
    """``sum_b factors_b values_b``; values of excluded examples are never multiplied.

    Args:
        values: (B, ...).
        factors: (B,) float64, from `clip_factors`; zero, or not too small (`doubtful`).
        excluding: whether an example may have a zero factor and values that are not finite.

    Returns:
        (...), in float32 or the values' own type if that is wider.

    >>> weighted_sum(torch.tensor([[1.0, 2.0], [float("nan"), 1.0]]), torch.tensor([0.5, 0.0]).double())
    tensor([0.5000, 1.0000])
    """
    dtype = accumulation_dtype(values.dtype)
    values = without_excluded(values, factors) if excluding else values
    return _shaped(torch.mv(_rows(values).to(dtype).t(), factors.to(dtype)), values)


def exact_weighted_sum(values: Tensor, factors: Tensor) -> Tensor:
    """`weighted_sum` with products and sums in float64, for factors of any size."""
    dtype = accumulation_dtype(values.dtype)
    values = without_excluded(values, factors)
    rows = _rows(values)
    total = torch.empty(rows.shape[1], dtype=dtype, device=values.device)
    width = max(1, _BLOCK // max(1, len(rows)))
    for start in range(0, rows.shape[1], width):
        block = rows[:, start : start + width]
        total[start : start + width] = torch.mv(block.double().t(), factors)
    return _shaped(total, values)
