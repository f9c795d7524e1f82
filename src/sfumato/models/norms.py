"""Layers that networks are made of: the normalisation of a model's option `norm`, and convolutions with standardised
weights (Qiao et al. 2019, in the forms of De et al. 2022).

Batch norm with the statistics of public examples, after Davody et al. 2020 (arXiv 2006.10919).

The paper normalises the private batch together with public examples, so one example changes the gradients of all
others, and the paper's guarantee does not hold. Here no private example affects the normalisation of another.

- Public statistics (`PublicNorm`): each layer normalises by the moments of its inputs from the public examples at the
  present weights. They are constants for the gradient, and cost one public pass for a whole step.
- The example and public statistics (`OwnPublicNorm`): each private example mixes in its own moments with the weight
  1 / (M + 1), as in the paper's test phase. Public examples are still normalised by public moments alone.
- Through the statistics (`ThroughNorm`): as `PublicNorm`, but the gradient also flows through the public moments, by
  one Jacobian of all moments that the examples of a step share.
- Jointly (`JointNorm`): exactly {x} and the M public examples, through the whole network. The activations of the public
  examples then depend on x, at M + 1 times the cost.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfumato._checks import SfumatoError, one_of

NORMS = ("none", "batch", "layer", "group", "instance")
_GROUPS = (16, 8, 4, 2, 1)


def normalisation(kind: str, channels: int, *, spatial: bool) -> nn.Module:
    """Creates a normalisation layer with gain one and shift zero.

    Args:
        kind: "batch" over the examples of a batch, which couples them; "layer" over all units of the layer, for a
            convolution all channels and positions (Davody et al. 2020, equation 3); "group" over groups of channels,
            with the largest of 16, 8, 4, 2 and 1 that divides the channels; "instance" over the positions of each
            channel; or "none".
        channels: number of output channels of the layer.
        spatial: whether the output is (N, C, H, W), from a convolution, or (N, C). Without positions a single unit
            cannot be normalised: "instance" then means "none", and a group has at least two units.

    Raises:
        SfumatoError: an unknown kind.

    >>> normalisation("layer", 6, spatial=True).num_groups, normalisation("group", 84, spatial=False).num_groups
    (1, 4)
    """
    one_of(NORMS, norm=kind)
    if kind == "batch":
        return nn.BatchNorm2d(channels) if spatial else nn.BatchNorm1d(channels)
    if kind == "layer":
        return nn.GroupNorm(1, channels) if spatial else nn.LayerNorm(channels)
    if kind == "group":
        equal = (groups for groups in _GROUPS if channels % groups == 0 and (spatial or groups < channels))
        return nn.GroupNorm(next(equal, 1), channels)
    return nn.GroupNorm(channels, channels) if kind == "instance" and spatial else nn.Identity()


@dataclass(frozen=True)
class Norms:
    """The options `norm`, `norm_last` and `mod` of a model (Davody et al. 2020, section 2).

    Every trained layer except the last is followed by a normalisation, before its activation.

    Args:
        kind: one of `NORMS`.
        last: whether the logits are normalised too, as in the paper's augmented form.
        mod: whether the last layer before the classifier has no normalisation, as in the paper's `-mod` variants.

    Raises:
        SfumatoError: an unknown kind, `last` or `mod` without a normalisation, or both together.
    """

    kind: str
    last: bool | int = False
    mod: bool | int = False

    def __post_init__(self) -> None:
        one_of(NORMS, norm=self.kind)
        switches = self.last in (0, 1) and self.mod in (0, 1) and not (self.last and self.mod)
        if not switches or (self.kind == "none" and (self.last or self.mod)):
            raise SfumatoError(
                f"norm_last adds the last normalisation and mod removes it, but norm is {self.kind}, norm_last is "
                f"{self.last!r} and mod is {self.mod!r}",
                "give a norm such as layer, and at most one of the two, as 1",
            )

    @property
    def before_classifier(self) -> Norms:
        """The options for the last layer before the classifier."""
        return Norms("none") if self.mod else self

    def after_convolution(self, channels: int) -> nn.Module:
        """The normalisation of (N, C, H, W)."""
        return normalisation(self.kind, channels, spatial=True)

    def after_linear(self, units: int) -> nn.Module:
        """The normalisation of (N, D)."""
        return normalisation(self.kind, units, spatial=False)

    def for_logits(self, classes: int) -> nn.Module:
        """The normalisation of the logits (N, classes): identity except in the augmented form."""
        return self.after_linear(classes) if self.last else nn.Identity()


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


_NONE = 1e-30
"""The eps of a batch norm with mean 0 and variance 1, used only for gain and shift: 1 + 1e-30 is 1 in every format.
torch 2.11 refuses 0."""


class PublicNorm(nn.Module):
    """Batch norm of (N, C, ...) with stored moments of public examples, and a gain and a shift per channel.

    Moments are population moments over public examples and positions.

    Args:
        channels: C.
        eps: added to the variance.

    **Guarantee.** An example's output is a function of that example, of the parameters and of public examples.
    """

    mean: Tensor
    variance: Tensor

    def __init__(self, channels: int, *, eps: float = 1e-5):
        super().__init__()
        self.eps = eps
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("variance", torch.ones(channels))
        self.passes: int | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Normalises (N, C, ...). While moments are being computed, those of x are stored first."""
        if self.passes is not None:
            self._take(x)
        return self._normalised(x)

    def _normalised(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, self.mean, self.variance, self.weight, self.bias, eps=self.eps)

    def _take(self, x: Tensor) -> None:
        assert self.passes is not None
        self.passes += 1
        variance, mean = torch.var_mean(x.transpose(0, 1).flatten(1), dim=1, correction=0)
        self.mean.copy_(mean)
        self.variance.copy_(variance)


class OwnPublicNorm(PublicNorm):
    """`PublicNorm` with the moments of the example and M public examples; the example has weight 1 / (M + 1).

    The example's moments are over its positions, and its gradient flows through them. Without positions, its values are
    its means, and their squares its second moments.
    """

    def __init__(self, channels: int, *, public: int, eps: float = 1e-5):
        super().__init__(channels, eps=eps)
        self.public = public

    def _normalised(self, x: Tensor) -> Tensor:
        if self.passes is not None:  # public examples
            return super()._normalised(x)
        positions = x.flatten(2) if x.dim() > 2 else x.unsqueeze(2)
        own_mean, own_square = positions.mean(2), positions.square().mean(2)
        share = 1 / (self.public + 1)
        mean = self.mean + share * (own_mean - self.mean)
        # E[z^2] - mean^2 of the mixture, without cancellation.
        variance = (1 - share) * self.variance + share * (own_square - own_mean.square()).clamp_min(0)
        variance = variance + share * (1 - share) * (own_mean - self.mean).square()
        scaled = (positions - mean.unsqueeze(2)) * (variance + self.eps).rsqrt().unsqueeze(2)
        zeros, ones = torch.zeros_like(self.mean), torch.ones_like(self.variance)
        return F.batch_norm(scaled.reshape(x.shape), zeros, ones, self.weight, self.bias, eps=_NONE)


class ThroughNorm(PublicNorm):
    """`PublicNorm` with moments m that are differentiable functions of all trained parameters theta.

    The gradient flows through the moments by the Jacobian J = dm / dtheta, which `store_jacobian` computes once for all
    examples. In training the moments are m + J (theta - theta'), where theta' has the values of theta without a
    gradient. The added term is zero and has the correct derivative.
    """

    jacobian: Tensor | None

    def __init__(self, channels: int, *, eps: float = 1e-5):
        super().__init__(channels, eps=eps)
        self.register_buffer("jacobian", None, persistent=False)
        self.moments: tuple[Tensor, Tensor] | None = None

    def _normalised(self, x: Tensor) -> Tensor:
        mean, variance = (self.mean, self.variance) if self.moments is None else self.moments
        each = (-1, *[1] * (x.dim() - 2))
        scaled = (x - mean.reshape(each)) * (variance.reshape(each) + self.eps).rsqrt()
        zeros, ones = torch.zeros_like(self.mean), torch.ones_like(self.variance)
        return F.batch_norm(scaled, zeros, ones, self.weight, self.bias, eps=_NONE)

    def _take(self, x: Tensor) -> None:
        super()._take(x.detach())
        if torch.is_grad_enabled():
            variance, mean = torch.var_mean(x.transpose(0, 1).flatten(1), dim=1, correction=0)
            self.moments = mean, variance


class JointNorm(nn.Module):
    """Batch norm within each group of M + 1: an example and the public examples that follow it.

    Args:
        channels: C.
        public: M.
        eps: added to the variance.
    """

    def __init__(self, channels: int, *, public: int, eps: float = 1e-5):
        super().__init__()
        self.eps, self.public = eps, public
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Normalises (N (M + 1), C, ...)."""
        groups = (x.flatten(2) if x.dim() > 2 else x.unsqueeze(2)).unflatten(0, (-1, self.public + 1))
        variance, mean = torch.var_mean(groups, dim=(1, 3), correction=0, keepdim=True)
        scaled = ((groups - mean) * (variance + self.eps).rsqrt()).reshape(x.shape)
        zeros, ones = scaled.new_zeros(x.shape[1]), scaled.new_ones(x.shape[1])
        return F.batch_norm(scaled, zeros, ones, self.weight, self.bias, eps=_NONE)
