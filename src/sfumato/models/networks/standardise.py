"""Convolution with weight standardisation (Qiao et al. 2019, in the form of De et al. 2022, appendix C.1)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

# Keeps a filter of equal weights (or of a single weight) finite; far below the variance of any trained filter.
_SMALLEST_VARIANCE = 1e-12


def standardise(weight: Tensor) -> Tensor:
    """Each output unit's weights with mean 0 and squared sum 1: (W - mean) / (std * sqrt(fan_in)).

    Args:
        weight: (out, in, *kernel), a convolution's weight; mean and (population) standard deviation are taken over
            everything but the first dimension, whose extent is the fan-in.

    Returns:
        A tensor of the same shape, differentiable in `weight`.

    >>> standardise(torch.tensor([[1.0, 3.0], [5.0, -5.0]]).reshape(2, 2, 1, 1)).flatten(1)
    tensor([[-0.7071,  0.7071],
            [ 0.7071, -0.7071]])
    """
    rows = weight.flatten(1)
    variance, mean = torch.var_mean(rows, dim=1, correction=0, keepdim=True)
    scale = torch.rsqrt(variance.clamp_min(_SMALLEST_VARIANCE) * rows.shape[1])
    return ((rows - mean) * scale).reshape(weight.shape)


class FanInConv2d(nn.Conv2d):
    """`nn.Conv2d` whose parameters start from a Gaussian of variance 1 / fan_in and zero biases.

    Input (N, C, H, W), output (N, D, H', W'), with nn.Conv2d's arguments. Source: De et al. 2022, appendix C.1.
    """

    def reset_parameters(self) -> None:
        """Draw the weight from a Gaussian of variance 1 / fan_in; set the bias to zero."""
        nn.init.normal_(self.weight, std=self.weight[0].numel() ** -0.5)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class WSConv2d(FanInConv2d):
    """The same with its weight standardised at every use, so that gradients flow through the standardisation."""

    def forward(self, input: Tensor) -> Tensor:
        """Convolve (N, C, H, W) with the standardised weight."""
        return self._conv_forward(input, standardise(self.weight), self.bias)
