"""Norms over groups of channels, and batch norm with stored statistics: one weight and one bias per channel.

The library's backward kernel sums the gradients of weight and bias over images. If all images are passed as the
channels of a single one, ``(1, N*C, ...)`` with N*G groups, the groups stay the same, and so do the input gradients,
while the result for each channel belongs to one image: per-example gradients at no extra cost.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from sfumato.gradients import clipping
from sfumato.gradients.methods.batch_axis import depends_on_example
from sfumato.gradients.sites import Site
from sfumato.gradients.use import Instantiated

# The largest number of groups per image that CUDA's kernels can launch.
_MOST_GROUPS = 65535


class ChannelNormSite(Site):
    """One call of a norm that ends in a scale and shift of each channel.

    Args:
        weight, bias: (C,) or None.
        epsilon: added to the variance.
        groups: G of a group norm; C of an instance norm.
        stored: mean and variance (C,) of a batch norm with stored statistics, whose groups are its channels.
    """

    kind = "norm"

    def __init__(
        self,
        weight: Tensor | None,
        bias: Tensor | None,
        epsilon: float,
        groups: int,
        stored: tuple[Tensor, Tensor] | None = None,
    ):
        super().__init__(weight=weight, bias=bias)
        self._epsilon, self._groups, self._stored = epsilon, groups, stored

    def forward(self, inputs: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        x = inputs.to(clipping.accumulation_dtype(inputs.dtype))
        weight, bias = self.constant("weight", x), self.constant("bias", x)
        weight, bias = (None if t is None else t.contiguous() for t in (weight, bias))  # the kernel ignores strides
        if self._stored is None:
            sizes = (x.shape[0], x.shape[1], math.prod(x.shape[2:]), self._groups)
            x = x if _channels_last(x) else x.contiguous()
            outputs, mean, scale = torch.native_group_norm(x, weight, bias, *sizes, self._epsilon)
        else:
            mean, variance = (t.detach().to(x.dtype).contiguous() for t in self._stored)
            outputs = F.batch_norm(x, mean, variance, weight, bias, eps=self._epsilon)
            mean, scale = (t.expand(len(x), -1) for t in (mean, (variance + self._epsilon).rsqrt()))
        return outputs.to(inputs.dtype), (inputs, mean, scale)

    def backward(self, saved: tuple[Tensor, ...], output_gradients: Tensor, wanted: bool) -> Tensor | None:
        inputs, mean, scale = saved
        x, g = (t.to(clipping.accumulation_dtype(t.dtype)) for t in (inputs, output_gradients))
        last = _channels_last(x)
        # In the channels-last layout several images cannot be read as one, so the kernel gets them one at a time. It
        # always gets the mask for the gradient of the inputs, because some versions write to it regardless.
        if last:
            g = g.contiguous(memory_format=torch.channels_last)
        else:
            x, g = x.reshape(*x.shape[:2], -1).contiguous(), g.reshape(*g.shape[:2], -1).contiguous()
        weight, step = self.constant("weight", x), 1 if last else max(1, _MOST_GROUPS // self._groups)
        mask = [last or (wanted and self._stored is None), self.needs_gradient("weight"), self.needs_gradient("bias")]
        pieces = zip(x.split(step), g.split(step), mean.split(step), scale.split(step), strict=True)
        parts = [_image_gradients(*piece, weight, mask) for piece in pieces]
        of_inputs, *gradients = (part[0] if len(part) == 1 else torch.cat(part) for part in zip(*parts, strict=True))
        for role, values in zip(("weight", "bias"), gradients, strict=True):
            if self.needs_gradient(role):
                self.add(role, Instantiated(self.sum_views(values.reshape(-1, x.shape[1]))))
        if self._stored is not None:
            of_inputs = g * (scale[0] if weight is None else scale[0] * weight).reshape(-1, *[1] * (g.dim() - 2))
        return of_inputs.reshape(inputs.shape).to(output_gradients.dtype) if wanted else None

    def describe(self) -> str:
        channels = next(iter(self.operands.values())).shape[0]
        if self._stored is not None:
            return f"{channels} channels, frozen"
        return f"{channels} channels in {self._groups} groups"


def _channels_last(x: Tensor) -> bool:
    """Whether to pass the tensor to the kernel in channels-last layout, which it supports on a CPU."""
    if x.device.type != "cpu" or x.dim() != 4 or x.is_contiguous():
        return False
    return x.is_contiguous(memory_format=torch.channels_last)


def _image_gradients(x: Tensor, g: Tensor, mean: Tensor, scale: Tensor, weight: Tensor | None, mask: list[bool]):
    """The gradients of inputs (n, C, ...), and each image's of weight and bias (n, C); empty if not in the mask."""
    (images, channels), positions = x.shape[:2], math.prod(x.shape[2:])
    if x.dim() == 3:
        x, g = x.reshape(1, -1, positions), g.reshape(1, -1, positions)
    if weight is None and mask[2]:  # some versions need the weight to determine the bias's type
        weight = x.new_ones(channels)
    weight = None if weight is None else weight.repeat(images)
    sizes = (1, images * channels, positions, mean.numel())
    statistics = (mean.reshape(1, -1).contiguous(), scale.reshape(1, -1).contiguous())
    gradients = torch.ops.aten.native_group_norm_backward(g, x, *statistics, weight, *sizes, mask)
    return [value if wanted else x.new_empty(0) for value, wanted in zip(gradients, mask, strict=True)]


def _call(mode, inputs: Tensor, weight, bias, epsilon: float, groups: int, stored=None):
    """A site's outputs. Empty inputs, and groups of a single number, are left to the library, which rejects them."""
    per_group = math.prod(inputs.shape[2:]) * (inputs.shape[1] // groups)
    if inputs.numel() == 0 or (stored is None and per_group == 1):
        return NotImplemented
    return mode.call(ChannelNormSite(weight, bias, epsilon, groups, stored), inputs)


def tap_group_norm(mode, input, num_groups, weight=None, bias=None, eps=1e-5):
    """The handler of ``F.group_norm``."""
    if input.dim() < 2 or num_groups < 1 or input.shape[1] % num_groups:
        return NotImplemented
    return _call(mode, input, weight, bias, eps, num_groups)


def tap_instance_norm(
    mode,
    input,
    running_mean=None,
    running_var=None,
    weight=None,
    bias=None,
    use_input_stats=True,
    momentum=0.1,
    eps=1e-5,
):
    """The handler of ``F.instance_norm``."""
    if not use_input_stats:
        return tap_batch_norm(mode, input, running_mean, running_var, weight, bias, eps=eps)
    if running_mean is not None or running_var is not None or input.dim() < 3:
        return NotImplemented
    return _call(mode, input, weight, bias, eps, input.shape[1])


def tap_batch_norm(
    mode, input, running_mean, running_var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5
):
    """The handler of ``F.batch_norm`` with stored statistics."""
    if training or running_mean is None or running_var is None or input.dim() < 2:
        return NotImplemented
    if any(depends_on_example(tensor) for tensor in (running_mean, running_var)):
        return NotImplemented
    return _call(mode, input, weight, bias, eps, input.shape[1], (running_mean, running_var))
