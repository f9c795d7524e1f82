"""How a convolution moves over its inputs, and what torch computes of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """How a convolution's kernel moves: one number per spatial dimension, and the groups."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    transposed: bool = False
    output_padding: tuple[int, ...] = ()

    def _rest(self) -> tuple:
        extra = self.output_padding or (0,) * len(self.stride)
        return self.stride, self.padding, self.dilation, self.transposed, extra, self.groups

    def apply(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The convolution of (N, in, ...) with (out, in / groups, ...), or transposed with (in, out / groups, ...)."""
        return torch.convolution(inputs, weight, bias, *self._rest())

    def backward(self, output_gradients: Tensor, inputs: Tensor, weight: Tensor, *, of_weight: bool) -> Tensor:
        """The gradient of the weight, or else of the inputs."""
        mask = [not of_weight, of_weight, False]
        return torch.ops.aten.convolution_backward(output_gradients, inputs, weight, None, *self._rest(), mask)[
            int(of_weight)
        ]
