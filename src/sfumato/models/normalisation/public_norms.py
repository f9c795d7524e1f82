"""Batch norm by the statistics of public examples: what Davody et al. 2020 (arXiv 2006.10919) wanted, made sound.

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

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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
