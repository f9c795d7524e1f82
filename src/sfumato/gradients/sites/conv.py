"""Convolutions in one, two or three dimensions, with any stride, padding, dilation and groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from sfumato.gradients import clipping
from sfumato.gradients.sites import Instantiated, Use

Way = Literal["grouped", "loop", "unfold"]
_PATCH_ELEMENTS = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """How a convolution's kernel moves: one number per spatial dimension, and the groups."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    def apply(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The convolution of (N, in, ...) with (out, in / groups, ...)."""
        zeros = (0,) * len(self.stride)
        return torch.convolution(
            inputs, weight, bias, self.stride, self.padding, self.dilation, False, zeros, self.groups
        )

    def backward(self, output_gradients: Tensor, inputs: Tensor, weight: Tensor, *, of_weight: bool) -> Tensor:
        """The gradient of the weight, or else of the inputs."""
        return torch.ops.aten.convolution_backward(
            output_gradients,
            inputs,
            weight,
            None,
            self.stride,
            self.padding,
            self.dilation,
            False,
            (0,) * len(self.stride),
            self.groups,
            [not of_weight, of_weight, False],
        )[int(of_weight)]


def choose_way(weight: Tensor, geometry: Geometry) -> Way:
    """Which way to compute per-example weight gradients: a fixed rule, since a run must be replayed bit for bit.

    From times on two CPU cores: one convolution with a group per example wins while a weight is small (up to 128 x 128
    x 3 x 3); larger ones overflow the cache, and one kernel call per example is better. With up to three input
    channels the kernels are bad at groups, and the patches are small enough to write out.
    """
    if geometry.groups == 1 and weight.shape[1] <= 3 and weight.dim() == 4:
        return "unfold"
    return "grouped" if weight.numel() <= 150_000 else "loop"


def per_example_weight_gradients(
    inputs: Tensor, output_gradients: Tensor, weight: Tensor, geometry: Geometry, examples: int, way: Way
) -> Tensor:
    """The weight's gradient of each example, summed over its views and positions.

    Args:
        inputs: (B*K, in, ...).
        output_gradients: (B*K, out, ...).
        weight: (out, in / groups, ...), for its shape.
        examples: B.
        way: "grouped", "loop" or "unfold" (two dimensions only); all give the same up to rounding.

    Returns:
        (B, out, in / groups, ...).
    """
    views = inputs.shape[0] // examples
    if way == "loop":
        result = weight.new_empty(examples, *weight.shape)
        for index, (x, g) in enumerate(zip(inputs.split(views), output_gradients.split(views), strict=True)):
            result[index] = geometry.backward(g, x, weight, of_weight=True)
        return result
    if way == "grouped":

        def side_by_side(tensor: Tensor) -> Tensor:
            split = tensor.reshape(examples, views, *tensor.shape[1:]).transpose(0, 1)
            return split.reshape(views, examples * tensor.shape[1], *tensor.shape[2:])

        many = Geometry(
            stride=geometry.stride,
            padding=geometry.padding,
            dilation=geometry.dilation,
            groups=geometry.groups * examples,
        )
        shape = (examples * weight.shape[0], *weight.shape[1:])
        stacked = weight.new_empty(1).expand(shape)
        result = many.backward(side_by_side(output_gradients), side_by_side(inputs), stacked, of_weight=True)
        return result.reshape(examples, *weight.shape)
    # Patches of some examples at a time, so that they take little memory and stay near the processor.
    patch = views * weight[0].numel() * geometry.groups * output_gradients.shape[2:].numel()
    pieces = max(1, _PATCH_ELEMENTS // max(1, patch)) * views
    return torch.cat(
        [
            _by_patches(x, g, weight, geometry, views)
            for x, g in zip(inputs.split(pieces), output_gradients.split(pieces), strict=True)
        ]
    )


def _by_patches(inputs: Tensor, output_gradients: Tensor, weight: Tensor, geometry: Geometry, views: int) -> Tensor:
    groups, width, examples = geometry.groups, weight[0].numel(), inputs.shape[0] // views
    patches = F.unfold(inputs, weight.shape[2:], geometry.dilation, geometry.padding, geometry.stride)
    patches = patches.reshape(examples, views, groups, width, -1)
    gradients = output_gradients.reshape(examples, views, groups, weight.shape[0] // groups, -1)
    return torch.einsum("bkgit,bkgot->bgoi", patches, gradients).reshape(examples, *weight.shape)


class ConvSite:
    """One call of a convolution on a batch of examples.

    Args:
        weight: (out, in / groups, ...), as the forward used it: a parameter or a function of parameters.
        bias: (out,) or None.
        geometry: stride, padding, dilation, groups.
        examples: B.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, geometry: Geometry, examples: int):
        self._weight, self._bias, self._geometry, self._examples = weight, bias, geometry, examples
        self._uses: list[tuple[Tensor, Use]] = []

    def record(self, inputs: Tensor, output_gradients: Tensor) -> None:
        dtype = clipping.accumulation_dtype(output_gradients.dtype)
        inputs, output_gradients = inputs.detach().to(dtype), output_gradients.detach().to(dtype)
        if self._weight.requires_grad:
            weight, way = self._weight.detach().to(dtype), choose_way(self._weight, self._geometry)
            values = per_example_weight_gradients(inputs, output_gradients, weight, self._geometry, self._examples, way)
            self._uses.append((self._weight, Instantiated(values)))
        if self._bias is not None and self._bias.requires_grad:
            positions = output_gradients.reshape(self._examples, -1, *output_gradients.shape[1:]).flatten(3)
            self._uses.append((self._bias, Instantiated(positions.sum(dim=(1, 3)))))

    def uses(self) -> list[tuple[Tensor, Use]]:
        return self._uses
