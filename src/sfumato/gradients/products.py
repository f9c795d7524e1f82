"""Matrix products for devices: in the operands' own type, with results in float32 at least.

A GPU multiplies bfloat16 on its tensor cores and accumulates in float32; converting the operands to float32 first makes
the product many times slower. The forms in use depend on the kind of device only (`_devices.has_device_forms`), never
on timings.
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
"""Relative error of rounding to bfloat16: half the distance between neighbouring numbers."""
# Tensor cores accumulate 16 exact products and the running sum at a time, and truncate. The bound assumes 8.
_AT_ONCE = 8
# Hopper's kernels require rows of a multiple of this many numbers.
_EVEN = 8


def working_dtype(x: Tensor, g: Tensor) -> torch.dtype:
    """The type in which inputs and output gradients are multiplied: bfloat16 on a device, else float32 at least."""
    dtype = torch.promote_types(x.dtype, g.dtype)
    native = dtype == torch.bfloat16 and _devices.has_device_forms(x.device)
    return dtype if native else clipping.accumulation_dtype(dtype)


def batched_product(left: Tensor, right: Tensor, out: Tensor | None = None) -> Tensor:
    """The product of (n, p, t) and (n, t, q): (n, p, q), in float32 at least.

    Args:
        out: where the result is written; may be a part of a larger tensor.
    """
    if left.dtype != torch.bfloat16:
        return torch.bmm(left, right) if out is None else torch.bmm(left, right, out=out)
    if left.device.type == "cuda":
        result = torch.bmm(left, right, out_dtype=torch.float32)
    else:
        result = torch.bmm(left.float(), right.float())
    return result if out is None else out.copy_(result)


def product(left: Tensor, right: Tensor) -> Tensor:
    """The product of (p, t) and (t, q): (p, q), in float32 at least."""
    return batched_product(left.unsqueeze(0), right.unsqueeze(0))[0]


def gram(rows: Tensor) -> Tensor:
    """Inner products of all pairs of rows of (n, T, p): (n, T', T'), in float32 at least.

    T' is T; for bfloat16 it is the next multiple of 8, and the entries beyond T are zero.
    """
    if rows.dtype == torch.bfloat16:
        rows = F.pad(rows, (0, 0, 0, -rows.shape[1] % _EVEN))
    return batched_product(rows, rows.transpose(1, 2))


def dot_error_bound(terms: int, like: Tensor) -> float:
    """A bound on the error of dot products of this many terms by `batched_product`, relative to the sum of absolute
    terms.

    Source: how many products an NVIDIA tensor core accumulates at a time, and that it truncates, is not documented but
    was measured (Fasi, Higham, Mikaitis, Pranesh 2021, "Numerical behavior of NVIDIA tensor cores").
    """
    if like.dtype == torch.float64:
        return (terms + 8) * 2.0**-53
    if like.dtype == torch.bfloat16 and like.device.type == "cuda":
        return (terms / _AT_ONCE + 8) * 2.0**-23
    return (terms + 8) * 2.0**-24


@contextmanager
def convolution_precision(device: torch.device) -> Iterator[None]:
    """Makes float32 products as precise as torch's convolutions within the context: TF32 on CUDA unless disabled."""
    try:
        coarser = (
            device.type == "cuda" and torch.backends.cudnn.allow_tf32 and not torch.backends.cuda.matmul.allow_tf32
        )
    except RuntimeError:  # raised if the precisions were set separately for each backend
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
    """The values (n, ...), each multiplied by its factor (n,), rounded once to the values' own type."""
    factors = factors.to(clipping.accumulation_dtype(values.dtype)).reshape(-1, *[1] * (values.dim() - 1))
    if values.dtype != torch.bfloat16:
        return values * factors
    if values.device.type != "cuda":
        return (values * factors).to(values.dtype)
    return torch.mul(values, factors, out=torch.empty_like(values))  # in float32, with one kernel
