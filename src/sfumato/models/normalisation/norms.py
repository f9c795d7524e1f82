"""Layers that networks are made of: the normalisation of a model's option `norm`, and convolutions with standardised
weights (Qiao et al. 2019, in the forms of De et al. 2022).

Batch norm by the statistics of public examples: what Davody et al. 2020 (arXiv 2006.10919) wanted, made sound.

As printed, the paper normalises by the private batch together with public examples, so that one example moves every
other one's gradient, and its guarantee does not hold. Here no private example enters what another one is normalised by.

- Public statistics (`PublicNorm`): each layer normalises by the moments of what the public examples give there, at the
  present weights: constants for the gradient, one public pass for a whole step.
- The example itself with them (`OwnPublicNorm`): each private example mixes its own moments in, with the weight
  1 / (M + 1), as in the paper's test phase; public examples are still normalised by public moments alone.
- Through the statistics (`ThroughNorm`): the first form once more, but for the gradient, which flows through the public
  moments too, by one Jacobian of all moments that the examples of a step share.
- Jointly (`JointNorm`): exactly {x} and the M public examples, through the whole network. What public examples give
  then depends on x, at M + 1 times the cost.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfumato._checks import SfumatoError, one_of, positive_integer

NORMS = ("none", "batch", "layer", "group", "instance")
_GROUPS = (16, 8, 4, 2, 1)


def normalisation(kind: str, channels: int, *, spatial: bool) -> nn.Module:
    """One normalisation layer, whose gain starts at one and whose shift starts at zero.

    Args:
        kind: "batch" over the examples of a batch, which couples them; "layer" over all units of the layer, of a
            convolution all channels and positions (Davody et al. 2020, equation 3); "group" over each of as many equal
            groups of channels as there can be of 16, 8, 4, 2 and 1; "instance" over each channel's positions; or
            "none".
        channels: of the layer's output.
        spatial: whether that is (N, C, H, W), of a convolution, or (N, C). Units without positions are never normalised
            one by one, which would leave nothing of them: "instance" is then "none", and a group has two at least.

    Raises:
        SfumatoError: an unknown kind, or fewer than one channel.

    >>> normalisation("layer", 6, spatial=True).num_groups, normalisation("group", 84, spatial=False).num_groups
    (1, 4)
    """
    one_of("norm", kind, NORMS)
    positive_integer("channels", channels)
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
    """What a model's options `norm`, `norm_last` and `mod` say: a normalisation after each layer that is trained,
    before its activation, but the last one, whose output is the logits (Davody et al. 2020, section 2).

    Args:
        kind: one of `NORMS`.
        last: whether the logits are normalised too, as in the paper's augmented form.
        mod: whether that of the last layer before the classifier is left out, as in the paper's `-mod` variants.

    Raises:
        SfumatoError: an unknown kind, or `last` or `mod` where there is nothing to add or to leave out.
    """

    kind: str
    last: bool | int = False
    mod: bool | int = False

    def __post_init__(self) -> None:
        one_of("norm", self.kind, NORMS)
        given = [name for name, value in (("norm_last", self.last), ("mod", self.mod)) if _switch(name, value)]
        if given and self.kind == "none":
            raise SfumatoError(
                f"{given[0]} changes where layers are normalised, and norm is none",
                f"give a norm such as layer, or leave {given[0]} out",
            )
        if len(given) > 1:
            raise SfumatoError("mod leaves out the last normalisation, and norm_last adds one", "leave one of them out")

    @property
    def before_classifier(self) -> Norms:
        """For the last layer before the classifier."""
        return Norms("none") if self.mod else self

    def after_convolution(self, channels: int) -> nn.Module:
        """For (N, C, H, W)."""
        return normalisation(self.kind, channels, spatial=True)

    def after_linear(self, units: int) -> nn.Module:
        """For (N, D)."""
        return normalisation(self.kind, units, spatial=False)

    def of_logits(self, classes: int) -> nn.Module:
        """For the logits (N, classes): nothing but in the augmented form."""
        return self.after_linear(classes) if self.last else nn.Identity()


def _switch(name: str, value: object) -> bool:
    if isinstance(value, int) and value in (0, 1):
        return bool(value)
    raise SfumatoError(f"{name} must be 1 or 0, got {value!r}", "give 1, or leave it out")


# Keeps a filter of equal weights (or of a single weight) finite; far below the squared sum of any trained filter.
_SMALLEST = 1e-12
RELEASED_SMALLEST = 1e-4
"""The least squared sum in the code that De et al. released."""


def standardise(weight: Tensor, smallest: float = _SMALLEST) -> Tensor:
    """Each output unit's weights with mean 0 and squared sum 1: (W - mean) / (std * sqrt(fan_in)).

    Args:
        weight: (out, in, *kernel), a convolution's weight; mean and (population) standard deviation are taken over
            everything but the first dimension, whose extent is the fan-in.
        smallest: what is taken for fan_in times the variance where that is less.

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


class GainedWSConv2d(FanInConv2d):
    """The same with a learned gain of each output unit, which begins at 1: the form that De et al. released."""

    def reset_parameters(self) -> None:
        """As above, with gains of 1."""
        super().reset_parameters()
        self.gain = nn.Parameter(torch.ones_like(self.weight[:, 0, 0, 0]))

    def forward(self, input: Tensor) -> Tensor:
        """Convolve (N, C, H, W) with the standardised weight times the gain."""
        weight = standardise(self.weight, RELEASED_SMALLEST) * self.gain.reshape(-1, 1, 1, 1)
        return self._conv_forward(input, weight, self.bias)


_NONE = 1e-30
"""The eps of a batch norm that only applies gain and shift, at mean 0 and variance 1: 1 + 1e-30 is 1 in every format.
torch 2.11 refuses 0."""


class PublicNorm(nn.Module):
    """Batch norm (N, C, ...) at stored moments of public examples; a gain and a shift for each channel.

    Moments are population ones, over public examples and positions.

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
        """(N, C, ...) to the same; while moments are taken, those of x are stored first."""
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
    """The same by the moments of {the example itself} and M public examples: its own have the weight 1 / (M + 1).

    An example's own moments are over its positions, and its gradient flows through them; without positions its values
    are its means, and their squares its second moments.
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
        # E[z^2] - mean^2 of the mixture, without the cancellation of two large numbers.
        variance = (1 - share) * self.variance + share * (own_square - own_mean.square()).clamp_min(0)
        variance = variance + share * (1 - share) * (own_mean - self.mean).square()
        scaled = (positions - mean.unsqueeze(2)) * (variance + self.eps).rsqrt().unsqueeze(2)
        none, one = torch.zeros_like(self.mean), torch.ones_like(self.variance)
        return F.batch_norm(scaled.reshape(x.shape), none, one, self.weight, self.bias, eps=_NONE)


class ThroughNorm(PublicNorm):
    """The same outputs as `PublicNorm`, with moments m that are functions of all trained parameters theta.

    A gradient flows through them by the Jacobian J = dm / dtheta, which `take_jacobian` takes once for all examples: in
    training, moments are m + J (theta - theta'), theta' the same values without a gradient, so that what is added is
    zero and has the right derivative.
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
        none, one = torch.zeros_like(self.mean), torch.ones_like(self.variance)
        return F.batch_norm(scaled, none, one, self.weight, self.bias, eps=_NONE)

    def _take(self, x: Tensor) -> None:
        super()._take(x.detach())
        if torch.is_grad_enabled():
            variance, mean = torch.var_mean(x.transpose(0, 1).flatten(1), dim=1, correction=0)
            self.moments = mean, variance


class JointNorm(nn.Module):
    """Batch norm within each group of M + 1: an example and the public ones that stand after it.

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
        """(N (M + 1), C, ...) to the same."""
        groups = (x.flatten(2) if x.dim() > 2 else x.unsqueeze(2)).unflatten(0, (-1, self.public + 1))
        variance, mean = torch.var_mean(groups, dim=(1, 3), correction=0, keepdim=True)
        scaled = ((groups - mean) * (variance + self.eps).rsqrt()).reshape(x.shape)
        none, one = scaled.new_zeros(x.shape[1]), scaled.new_ones(x.shape[1])
        return F.batch_norm(scaled, none, one, self.weight, self.bias, eps=_NONE)
