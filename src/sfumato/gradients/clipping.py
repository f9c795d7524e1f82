"""The arithmetic of clipping: squared norms, clip factors, weighted sums.

For per-example gradients ``G_b`` and a bound ``C`` the clipped sum is ``sum_b min(1, C / |G_b|) G_b`` (Abadi et al.
2016, arXiv 1607.00133, algorithm 1). Three things make the bound hold in floating point too:

- squares are summed in float64, so a norm is never too small, and neither overflows nor vanishes for float32 gradients;
- a factor is ``C (1 - 4 epsilon) / |G_b|``, with ``epsilon`` the rounding unit of the sums, which pays for the rounding
  of the products that come after;
- an example with anything that is not finite has the factor zero, and its rows are replaced by zeros before any product
  (``0 * NaN`` would be ``NaN``).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

# Elements converted to float64 at a time: the buffer stays in a core's cache instead of being fresh memory.
_BLOCK = 1 << 17
# Below this a float32 product of factor and gradient could lose digits to gradual underflow.
_SMALLEST_SAFE_FACTOR = 1e-30


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type in which gradients of parameters of this type are summed: at least float32."""
    return torch.promote_types(dtype, torch.float32)


def squared_norms(values: Tensor) -> Tensor:
    """Squared L2 norm of each example's values, summed in float64.

    Args:
        values: (B, ...), any real floating type.

    Returns:
        (B,) float64.

    >>> squared_norms(torch.tensor([[3.0, 4.0], [1e30, 0.0]])).tolist()[0]
    25.0
    """
    examples = values.shape[0]
    rows = values.reshape(examples, math.prod(values.shape[1:]))
    width = max(1, _BLOCK // max(1, examples))
    total = torch.zeros(examples, dtype=torch.float64, device=values.device)
    if rows.shape[1] == 0:
        return total
    buffer = torch.empty(examples, min(width, rows.shape[1]), dtype=torch.float64, device=values.device)
    for block in rows.split(width, dim=1):
        square = buffer[:, : block.shape[1]].copy_(block)
        total += square.mul_(square).sum(dim=1)
    return total


def clip_factors(squares: Tensor, losses: Tensor, *, max_norm: float, dtype: torch.dtype) -> Tensor:
    """``min(1, C / norm)`` for each example, rounded down; zero for an example that is not finite.

    Args:
        squares: (B,) float64, squared norms of the whole per-example gradients.
        losses: (B,), the per-example losses; one that is not finite excludes its example.
        max_norm: the bound ``C``.
        dtype: the coarsest type in which the weighted sums are computed.

    Returns:
        (B,) float64. A factor of exactly zero means: leave this example out.

    **Guarantee.** One example's term of a weighted sum with these factors has an L2 norm of at most ``C``: its exact
    value is at most ``C (1 - 4 epsilon)``, and two roundings of relative size ``epsilon / 2`` each follow.
    """
    bound = max_norm * (1 - 4 * torch.finfo(dtype).eps)
    norms = squares.sqrt()
    factors = torch.where(norms > bound, bound / norms, 1.0)
    return torch.where(torch.isfinite(squares) & torch.isfinite(losses), factors, 0.0)


def without_excluded(values: Tensor, factors: Tensor) -> Tensor:
    """The values (B, ...) with zeros in place of examples whose factor is zero."""
    kept = factors != 0
    if bool(kept.all()):
        return values
    return torch.where(kept.reshape(-1, *[1] * (values.dim() - 1)), values, values.new_zeros(()))


def weighted_sum(values: Tensor, factors: Tensor) -> Tensor:
    """``sum_b factors_b values_b``, with the values of excluded examples never multiplied.

    Args:
        values: (B, ...).
        factors: (B,) float64, from `clip_factors`.

    Returns:
        (...), in float32 or the values' own type if that is wider.

    >>> weighted_sum(torch.tensor([[1.0, 2.0], [float("nan"), 1.0]]), torch.tensor([0.5, 0.0]).double())
    tensor([0.5000, 1.0000])
    """
    dtype = accumulation_dtype(values.dtype)
    examples, shape = values.shape[0], values.shape[1:]
    rows = without_excluded(values, factors).reshape(examples, math.prod(shape))
    if not needs_float64(factors, dtype):
        return torch.mv(rows.to(dtype).t(), factors.to(dtype)).reshape(shape)
    total = torch.empty(rows.shape[1], dtype=dtype, device=values.device)
    width = max(1, _BLOCK // max(1, examples))
    for start in range(0, rows.shape[1], width):
        block = rows[:, start : start + width]
        total[start : start + width] = torch.mv(block.double().t(), factors)
    return total.reshape(shape)


def needs_float64(factors: Tensor, dtype: torch.dtype) -> bool:
    """Whether some factor is so small that its product with a gradient must be formed in float64."""
    return dtype != torch.float64 and bool(((factors > 0) & (factors < _SMALLEST_SAFE_FACTOR)).any())
