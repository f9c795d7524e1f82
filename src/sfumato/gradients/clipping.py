"""The arithmetic of clipping: squared norms, clip factors, weighted sums.

For per-example gradients ``G_b`` and a bound ``C`` the clipped sum is ``sum_b min(1, C / |G_b|) G_b`` (Abadi et al.
2016, arXiv 1607.00133, algorithm 1). Three things make the bound hold in floating point too:

- squares are summed in pieces, the pieces in float64, and their rounding is added, so a norm is never too small;
- a factor is ``C (1 - 4 epsilon) / |G_b|``, with ``epsilon`` the rounding unit of the sums, which pays for the rounding
  of the products that come after;
- an example with anything that is not finite has the factor zero, and its rows are replaced by zeros before any product
  (``0 * NaN`` would be ``NaN``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from sfumato.gradients import grid

# Numbers of float32 that are squared and summed in their own type before float64 takes over.
_PIECE = 64
# Elements converted to float64 at a time: the buffer stays in a core's cache instead of being fresh memory.
_BLOCK = 1 << 17
# Below this a float32 product of factor and gradient could lose digits to gradual underflow.
_SMALLEST_SAFE_FACTOR = 1e-30
# Of factors that are still in use: the version of the tensor that was asked about, and whether they are plain.
_answers: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type in which gradients of parameters of this type are summed: at least float32."""
    return torch.promote_types(dtype, torch.float32)


def zeros(parameter: Tensor) -> Tensor:
    """A sum of no gradients of a parameter."""
    return torch.zeros_like(parameter.detach(), dtype=accumulation_dtype(parameter.dtype))


def margin(dtype: torch.dtype) -> float:
    """By how much, relatively, `squared_lengths` adds to a sum of squares for its rounding."""
    return (_PIECE + 2) * torch.finfo(dtype).eps / 2


def squared_norms(values: Tensor) -> Tensor:
    """Squared L2 norm of each example's values: `squared_lengths` over all of their axes.

    Args:
        values: (B, ...), any real floating type.

    Returns:
        (B,) float64.
    """
    return squared_lengths(values.reshape(values.shape[0], math.prod(values.shape[1:])))


def squared_lengths(values: Tensor) -> Tensor:
    """Squared L2 norms along the last axis, never too small.

    Pieces of 64 numbers are summed in the values' own type, which is as fast as memory; the pieces in float64. However
    a piece is summed, its relative error is below 65 roundings, since no term is negative; that much is added. Where
    squares overflow or vanish, all is done in float64: for each norm by itself, so that no example changes how another
    one's rounds.

    Args:
        values: (..., n), any real floating type.

    Returns:
        (...) float64.

    >>> round(float(squared_lengths(torch.tensor([3.0, 4.0])).sqrt()), 4)
    5.0
    """
    values = values.to(accumulation_dtype(values.dtype))
    width, limits = values.shape[-1], torch.finfo(values.dtype)
    if values.numel() == 0:
        return torch.zeros(values.shape[:-1], dtype=torch.float64, device=values.device)
    whole = width // _PIECE * _PIECE
    parts = [values] if whole == 0 or width == _PIECE else [values[..., :whole].unflatten(-1, (-1, _PIECE))]
    if 0 < whole < width:
        parts.append(values[..., whole:])
    lengths = [torch.linalg.vector_norm(part, dim=-1).double().square_() for part in parts]
    total = lengths[0] if lengths[0].dim() < values.dim() else lengths[0].sum(dim=-1)
    for more in lengths[1:]:
        total += more
    total *= 1 + margin(values.dtype)
    floor = width * limits.tiny / limits.eps
    low, high = torch.aminmax(total)
    if not bool((low > floor) & (high < math.inf)):
        imprecise = ~((total > floor) & (total < math.inf))
        total[imprecise] = _squared_lengths_in_float64(values[imprecise])
    return total


def _squared_lengths_in_float64(rows: Tensor) -> Tensor:
    """(n, width) to (n,)."""
    width = max(1, _BLOCK // len(rows))
    return sum(torch.linalg.vector_norm(block.double(), dim=1).square() for block in rows.split(width, dim=1))  # type: ignore


def clip_factors(
    squares: Tensor,
    losses: Tensor,
    *,
    max_norm: float,
    of: Iterable[Tensor],
    weights: Tensor | None = None,
) -> Tensor:
    """``min(1, C / norm)`` for each example, rounded down, times its weight; zero for one that is not finite.

    Args:
        squares: (B,) float64, squared norms of the whole per-example gradients.
        losses: (B,), the per-example losses; one that is not finite excludes its example.
        max_norm: the bound ``C``.
        of: tensors of the shapes and types of the gradients of an example, all of them: how many numbers they have says
            how sums round on the grid (`grid`), and the coarsest type how weighted sums do.
        weights: (B,) float64 from 0 to 1. Padding has 0, and so is its factor. Where its gradients are zero already, as
            those of padding are but for a backward hook or something not finite, its factor is one as anybody's: to
            leave examples out takes time, which would tell that there are such.

    Returns:
        (B,) float64. A factor of exactly zero means: leave this example out.

    **Guarantee.** One example's term of a weighted sum with these factors has an L2 norm of at most ``C``: its exact
    value is at most ``C (1 - 4 epsilon - a)``, and two roundings of relative size ``epsilon / 2`` each follow; ``a C``
    is left for the rounding of sums on the grid (`grid.allowance`). A weight of at most 1 makes no factor larger.
    """
    like = list(of)
    elements = sum(tensor.numel() for tensor in like)
    dtype = max((accumulation_dtype(tensor.dtype) for tensor in like), key=lambda kind: torch.finfo(kind).eps)
    bound = max_norm * (1 - 4 * torch.finfo(dtype).eps - grid.allowance(elements))
    norms = squares.sqrt()
    factors = torch.where(norms > bound, bound / norms, 1.0)
    taking_part = torch.isfinite(squares) & torch.isfinite(losses)
    if weights is not None:
        taking_part &= (weights > 0) | (squares == 0)
        factors = torch.where(weights > 0, factors * weights, factors)
    return torch.where(taking_part, factors, 0.0)


def without_excluded(values: Tensor, factors: Tensor) -> Tensor:
    """The values (B, ...) with zeros in place of examples whose factor is zero."""
    if are_plain(factors):
        return values
    return torch.where((factors != 0).reshape(-1, *[1] * (values.dim() - 1)), values, values.new_zeros(()))


def weighted_sum(values: Tensor, factors: Tensor, *, plain: bool = False) -> Tensor:
    """``sum_b factors_b values_b``, with the values of excluded examples never multiplied.

    Args:
        values: (B, ...).
        factors: (B,) float64, from `clip_factors`.
        plain: whether it is known already that they are (`are_plain`), as those of a part are where all are.

    Returns:
        (...), in float32 or the values' own type if that is wider.

    >>> weighted_sum(torch.tensor([[1.0, 2.0], [float("nan"), 1.0]]), torch.tensor([0.5, 0.0]).double())
    tensor([0.5000, 1.0000])
    """
    dtype = accumulation_dtype(values.dtype)
    examples, shape = values.shape[0], values.shape[1:]
    rows = values.reshape(examples, math.prod(shape))
    plain = plain or are_plain(factors)
    rows = rows if plain else without_excluded(rows, factors)
    if plain or not needs_float64(factors, dtype):
        return torch.mv(rows.to(dtype).t(), factors.to(dtype)).reshape(shape)
    total = torch.empty(rows.shape[1], dtype=dtype, device=values.device)
    width = max(1, _BLOCK // max(1, examples))
    for start in range(0, rows.shape[1], width):
        block = rows[:, start : start + width]
        total[start : start + width] = torch.mv(block.double().t(), factors)
    return total.reshape(shape)


def are_plain(factors: Tensor) -> bool:
    """Whether no factor excludes its example or is too small for float32: the usual case, by one question.

    Every use of every parameter asks of the same factors, and each answer would be a stop on a device, where the host
    waits; so it is kept with the tensor, for as long as nothing writes to it.
    """
    now = -1 if factors.is_inference() else factors._version  # those of inference mode do not say when they change
    version, plain = _answers.get(factors) or (-1, False)
    if now == -1 or version != now:
        plain = factors.numel() == 0 or float(factors.amin()) >= _SMALLEST_SAFE_FACTOR
        _answers[factors] = now, plain
    return plain


def needs_float64(factors: Tensor, dtype: torch.dtype) -> bool:
    """Whether some factor is so small that its product with a gradient must be formed in float64."""
    return dtype != torch.float64 and bool(((factors > 0) & (factors < _SMALLEST_SAFE_FACTOR)).any())
