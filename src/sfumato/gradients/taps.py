"""Taps: how heavy uses of parameters are intercepted, without touching the model.

`Taps` is a mode around the forward pass of one example under ``torch.vmap``. It sees ``F.linear`` and the convolutions
when their input depends on the example and their weight does not, and sends them to a function whose batching rule
folds examples and views into one ordinary batch, so that the ordinary kernel runs once. The backward of that function
computes the gradient of the input only and hands (input, output gradient) to a site. No weight gradient is computed by
autograd, and the weight is detached there, so a parameter without other uses has no gradient path left.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C import _functorch  # type: ignore[attr-defined]

from sfumato.gradients.frozen import FrozenNorms
from sfumato.gradients.sites import Site
from sfumato.gradients.sites.conv import ConvSite, Geometry
from sfumato.gradients.sites.linear import LinearSite


def _is_batched(value: object) -> bool:
    return isinstance(value, Tensor) and _functorch.is_batchedtensor(value)


def _can_tap(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether the input depends on the example, the operands do not, and one of them is trained."""
    if not _is_batched(inputs) or _is_batched(weight) or _is_batched(bias):
        return False
    if _is_batched(_functorch.get_unwrapped(inputs)):
        return False  # the model itself is inside another vmap; its own rule would be needed there
    return weight.requires_grad or (bias is not None and bias.requires_grad)


def _operands(inputs: Tensor, axis: int, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Inputs with the examples first, and weight and bias as constants; in the type that autocast would choose."""
    inputs, weight, bias = inputs.movedim(axis, 0), weight.detach(), None if bias is None else bias.detach()
    if torch.is_autocast_enabled(inputs.device.type):
        dtype = torch.get_autocast_dtype(inputs.device.type)
        return inputs.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
    return inputs, weight, bias


def _examples_first(value: Tensor, axis: int | None, examples: int) -> Tensor:
    return value.unsqueeze(0).expand(examples, *value.shape) if axis is None else value.movedim(axis, 0)


def _fold(value: Tensor) -> Tensor:
    """(B, K, ...) -> (B*K, ...)."""
    return value.reshape(-1, *value.shape[2:])


class _Linear(torch.autograd.Function):
    """F.linear on folded examples; `anchor` makes autograd come by even when the input needs no gradient."""

    @staticmethod
    def forward(ctx, inputs, weight, bias, anchor, site):
        ctx.save_for_backward(inputs, weight)
        ctx.site = site
        return F.linear(inputs, weight, bias)

    @staticmethod
    def backward(ctx, output_gradients):  # type: ignore[override]
        inputs, weight = ctx.saved_tensors
        ctx.site.record(inputs, output_gradients)
        return output_gradients @ weight if ctx.needs_input_grad[0] else None, None, None, None, None


class _Convolution(torch.autograd.Function):
    """A convolution on folded examples; `anchor` as in `_Linear`."""

    @staticmethod
    def forward(ctx, inputs, weight, bias, anchor, site, geometry):
        ctx.save_for_backward(inputs, weight)
        ctx.site, ctx.geometry = site, geometry
        return geometry.apply(inputs, weight, bias)

    @staticmethod
    def backward(ctx, output_gradients):  # type: ignore[override]
        inputs, weight = ctx.saved_tensors
        ctx.site.record(inputs, output_gradients)
        of_inputs = None
        if ctx.needs_input_grad[0]:
            of_inputs = ctx.geometry.backward(output_gradients, inputs, weight, of_weight=False)
        return of_inputs, None, None, None, None, None


class _Tap(torch.autograd.Function):
    """A function that exists only under vmap: `vmap` runs one level down, where ordinary autograd records."""

    @staticmethod
    def forward(*args):
        raise RuntimeError("taps run under vmap only")

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass


class _LinearTap(_Tap):
    @staticmethod
    def vmap(info, in_dims, inputs, weight, bias, tape):  # type: ignore[override]
        site = LinearSite(weight, bias, info.batch_size)
        tape.sites.append(site)
        inputs, plain_weight, plain_bias = _operands(inputs, in_dims[0], weight, bias)
        return _Linear.apply(inputs, plain_weight, plain_bias, tape.anchor, site), 0


class _ConvolutionTap(_Tap):
    @staticmethod
    def vmap(info, in_dims, inputs, weight, bias, geometry, tape):  # type: ignore[override]
        site = ConvSite(weight, bias, geometry, info.batch_size)
        tape.sites.append(site)
        inputs, plain_weight, plain_bias = _operands(inputs, in_dims[0], weight, bias)
        outputs = _Convolution.apply(_fold(inputs), plain_weight, plain_bias, tape.anchor, site, geometry)
        return outputs.reshape(info.batch_size, -1, *outputs.shape[1:]), 0


class _AttentionTap(_Tap):
    """Scaled dot product attention has no batching rule on CPU; without a mask, views and heads simply fold."""

    @staticmethod
    def vmap(info, in_dims, query, key, value, dropout, causal, scale):  # type: ignore[override]
        query, key, value = (
            _examples_first(tensor, axis, info.batch_size)
            for tensor, axis in zip((query, key, value), in_dims[:3], strict=True)
        )
        outputs = F.scaled_dot_product_attention(
            _fold(query), _fold(key), _fold(value), dropout_p=dropout, is_causal=causal, scale=scale
        )
        return outputs.reshape(info.batch_size, -1, *outputs.shape[1:]), 0


def _masked_attention(query, key, value, mask, dropout, scale):
    """Attention written out, for masks that are learned or depend on the data."""
    scores = (query * (query.shape[-1] ** -0.5 if scale is None else scale)) @ key.transpose(-2, -1)
    scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    return F.dropout(scores.softmax(dim=-1), dropout) @ value


class Tape:
    """The sites that a forward pass met.

    Attributes:
        sites: in the order of the forward pass.
        anchor: () a tensor that needs a gradient, an argument of every tapped call.
    """

    def __init__(self, device: torch.device):
        self.sites: list[Site] = []
        self.anchor = torch.zeros((), device=device, requires_grad=True)


class Taps(FrozenNorms):
    """The mode around one example's forward pass; writes to the tape."""

    def __init__(self, tape: Tape):
        super().__init__()
        self._tape = tape

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        tap = _TAPPED.get(func)
        if tap is not None:
            outputs = tap(self, *args, **kwargs)
            if outputs is not None:
                return outputs
        return super().__torch_function__(func, types, args, kwargs)

    def _linear(self, input, weight, bias=None):
        if weight.dim() != 2 or not _can_tap(input, weight, bias):
            return None
        return _LinearTap.apply(input, weight, bias, self._tape)

    def _convolution(self, input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
        if not _can_tap(input, weight, bias):
            return None
        if weight.numel() == 0 or input.shape[-weight.dim() + 2 :].numel() == 0:
            return None
        dimensions = weight.dim() - 2
        stride, dilation = _per_dimension(stride, dimensions), _per_dimension(dilation, dimensions)
        if isinstance(padding, str):
            input, padding = _spelt_out(padding, input, weight, dilation)
        geometry = Geometry(
            stride=stride, padding=_per_dimension(padding, dimensions), dilation=dilation, groups=groups
        )
        if input.dim() == dimensions + 1:
            return _ConvolutionTap.apply(input.unsqueeze(0), weight, bias, geometry, self._tape).squeeze(0)  # type: ignore
        return _ConvolutionTap.apply(input, weight, bias, geometry, self._tape)

    def _attention(
        self, query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
    ):
        if enable_gqa or query.dim() < 3 or not query.shape[:-2] == key.shape[:-2] == value.shape[:-2]:
            return None
        if not (_is_batched(query) or _is_batched(key) or _is_batched(value)):
            return None
        if attn_mask is not None:
            return _masked_attention(query, key, value, attn_mask, dropout_p, scale)
        return _AttentionTap.apply(query, key, value, dropout_p, is_causal, scale)


_TAPPED = {
    F.linear: Taps._linear,
    F.conv1d: Taps._convolution,
    F.conv2d: Taps._convolution,
    F.conv3d: Taps._convolution,
    F.scaled_dot_product_attention: Taps._attention,
}


def _per_dimension(value, dimensions: int) -> tuple[int, ...]:
    numbers = (value,) if isinstance(value, int) else tuple(value)
    return numbers * dimensions if len(numbers) == 1 else numbers


def _spelt_out(padding: str, inputs: Tensor, weight: Tensor, dilation: tuple[int, ...]):
    """Padding by name as numbers; an odd total is padded on the far side first, as torch does."""
    if padding == "valid":
        return inputs, 0
    totals = [step * (size - 1) for step, size in zip(dilation, weight.shape[2:], strict=True)]
    if any(total % 2 for total in totals):
        far = [amount for total in reversed(totals) for amount in (0, total % 2)]
        inputs = F.pad(inputs, far)
    return inputs, tuple(total // 2 for total in totals)
