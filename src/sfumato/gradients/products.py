"""Matrix products for devices: in the operands' own type, with results in float32 at least.

A GPU multiplies bfloat16 on its tensor cores and adds up in float32; cast up first, the same product runs many times
slower. Which forms are taken is a matter of the kind of device alone (`_devices.has_own_forms`); no clock is asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor

from sfumato import _devices
from sfumato.gradients import clipping

SCALING = 2.0**-8
"""How far rounding to bfloat16 may move a number, relative to it: half the distance of its neighbours."""
_AT_ONCE = 8
# Tensor cores add up 16 exact products and what they have so far at a time, and cut off; half as many are counted on.
_EVEN = 8
# Hopper's kernels take rows of a multiple of so many numbers.


def working(x: Tensor, g: Tensor) -> torch.dtype:
    """The type in which inputs and output gradients are multiplied: bfloat16 as it is on a device, else float32 at
    least."""
    dtype = torch.promote_types(x.dtype, g.dtype)
    own = dtype == torch.bfloat16 and _devices.has_own_forms(x.device)
    return dtype if own else clipping.accumulation_dtype(dtype)


def batched(left: Tensor, right: Tensor, out: Tensor | None = None) -> Tensor:
    """(n, p, t) times (n, t, q): (n, p, q), in float32 at least.

    Args:
        out: where it is written to, which may be a part of a larger tensor.
    """
    if left.dtype != torch.bfloat16:
        return torch.bmm(left, right) if out is None else torch.bmm(left, right, out=out)
    if left.device.type == "cuda":
        found = torch.bmm(left, right, out_dtype=torch.float32)
    else:
        found = torch.bmm(left.float(), right.float())
    return found if out is None else out.copy_(found)


def product(left: Tensor, right: Tensor) -> Tensor:
    """(p, t) times (t, q): (p, q), in float32 at least."""
    return batched(left.unsqueeze(0), right.unsqueeze(0))[0]


def gram(rows: Tensor) -> Tensor:
    """(n, T, p) to (n, T', T'): inner products of all pairs of rows, in float32 at least; of bfloat16 T' is the next
    multiple of 8, and what is more than T is zero."""
    if rows.dtype == torch.bfloat16:
        rows = F.pad(rows, (0, 0, 0, -rows.shape[1] % _EVEN))
    return batched(rows, rows.transpose(1, 2))


def summing(terms: int, like: Tensor) -> float:
    """What dot products of so many terms, by `batched` of such tensors, may be wrong by, relative to the sum of the
    absolute terms.

    Source: what an NVIDIA tensor core adds up at a time, and that it cuts off, is not documented but was measured
    (Fasi, Higham, Mikaitis, Pranesh 2021, "Numerical behavior of NVIDIA tensor cores").
    """
    if like.dtype == torch.float64:
        return (terms + 8) * 2.0**-53
    if like.dtype == torch.bfloat16 and like.device.type == "cuda":
        return (terms / _AT_ONCE + 8) * 2.0**-23
    return (terms + 8) * 2.0**-24


@contextmanager
def as_convolutions(device: torch.device) -> Iterator[None]:
    """Within, products of float32 are as precise as torch's convolutions are: TF32 on CUDA unless that is off."""
    try:
        coarser = (
            device.type == "cuda" and torch.backends.cudnn.allow_tf32 and not torch.backends.cuda.matmul.allow_tf32
        )
    except RuntimeError:  # precisions were set one by one, in the newer way
        coarser = False
    if not coarser:
        yield
        return
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False


def scaled(values: Tensor, factors: Tensor) -> Tensor:
    """The values (n, ...) times a factor (n,) each, rounded once to the values' own type."""
    factors = factors.to(clipping.accumulation_dtype(values.dtype)).reshape(-1, *[1] * (values.dim() - 1))
    if values.dtype != torch.bfloat16:
        return values * factors
    if values.device.type != "cuda":
        return (values * factors).to(values.dtype)
    return torch.mul(values, factors, out=torch.empty_like(values))  # in float32, and one kernel
