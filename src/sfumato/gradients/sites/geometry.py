"""The geometry of a convolution, and the torch functions that compute with it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """Stride, padding and dilation of a convolution, one number per spatial dimension, and its groups."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    transposed: bool = False
    output_padding: tuple[int, ...] = ()

    def _arguments(self) -> tuple:
        extra = self.output_padding or (0,) * len(self.stride)
        return self.stride, self.padding, self.dilation, self.transposed, extra, self.groups

    def apply(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Convolves (N, in, ...) with (out, in / groups, ...), or with (in, out / groups, ...) if transposed."""
        return torch.convolution(inputs, weight, bias, *self._arguments())

    def backward(self, output_gradients: Tensor, inputs: Tensor, weight: Tensor, *, of_weight: bool) -> Tensor:
        """Returns the gradient of the weight if `of_weight`, otherwise that of the inputs."""
        mask = [not of_weight, of_weight, False]
        gradients = torch.ops.aten.convolution_backward(
            output_gradients, inputs, weight, None, *self._arguments(), mask
        )
        return gradients[int(of_weight)]
