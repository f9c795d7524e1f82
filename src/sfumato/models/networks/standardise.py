"""Convolutions with weight standardisation (Qiao et al. 2019), in the two forms of De et al. 2022."""

from __future__ import annotations

import torch
from torch import Tensor, nn

# Keeps a filter with equal weights (or a single weight) finite. Far below the squared sum of any trained filter.
_SMALLEST = 1e-12
RELEASED_SMALLEST = 1e-4
"""The lower bound in the code that De et al. released."""


def standardise(weight: Tensor, smallest: float = _SMALLEST) -> Tensor:
    """Standardises the weights of each output unit to mean 0 and squared sum 1: (W - mean) / (std * sqrt(fan_in)).

    Args:
        weight: (out, in, *kernel), a convolution's weight. Mean and (population) standard deviation are over all
            dimensions but the first; fan_in is the number of these elements.
        smallest: lower bound on fan_in times the variance.

    Returns:
        A tensor of the same shape, differentiable in `weight`.

    >>> standardise(torch.tensor([[1.0, 3.0], [5.0, -5.0]]).reshape(2, 2, 1, 1)).flatten(1)
    tensor([[-0.7071,  0.7071],
            [ 0.7071, -0.7071]])
    """
    rows = weight.flatten(1)
    variance, mean = torch.var_mean(rows, dim=1, correction=0, keepdim=True)
    scale = torch.rsqrt((variance * rows.shape[1]).clamp_min(smallest))
    return ((rows - mean) * scale).reshape(weight.shape)


class FanInConv2d(nn.Conv2d):
    """`nn.Conv2d` with weights initialised from a Gaussian of variance 1 / fan_in and zero biases.

    Input (N, C, H, W), output (N, D, H', W'). The arguments are those of nn.Conv2d. Source: De et al. 2022, appendix
    C.1.
    """

    def reset_parameters(self) -> None:
        """Draws the weight from a Gaussian of variance 1 / fan_in, and sets the bias to zero."""
        nn.init.normal_(self.weight, std=self.weight[0].numel() ** -0.5)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class WSConv2d(FanInConv2d):
    """`FanInConv2d` with the weight standardised at each use, so that gradients flow through the standardisation."""

    def forward(self, input: Tensor) -> Tensor:
        """Convolves (N, C, H, W) with the standardised weight."""
        return self._conv_forward(input, standardise(self.weight), self.bias)


class GainedWSConv2d(FanInConv2d):
    """`WSConv2d` with a learned gain per output unit, initially 1: the form that De et al. released."""

    def reset_parameters(self) -> None:
        """Draws weight and bias as `FanInConv2d` does, and sets the gains to 1."""
        super().reset_parameters()
        self.gain = nn.Parameter(torch.ones_like(self.weight[:, 0, 0, 0]))

    def forward(self, input: Tensor) -> Tensor:
        """Convolves (N, C, H, W) with the standardised weight times the gain."""
        weight = standardise(self.weight, RELEASED_SMALLEST) * self.gain.reshape(-1, 1, 1, 1)
        return self._conv_forward(input, weight, self.bias)
