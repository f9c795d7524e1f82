"""Batch norm with the statistics of public examples: a sound form of Davody et al. 2020 (arXiv 2006.10919).

As printed, the paper normalises with the private batch together with public examples. One example then changes the
gradient of every other example, and the paper's guarantee does not hold. Here no private example affects the
normalisation of another.

- Public statistics (`PublicNorm`): each layer normalises with the moments of the public examples at that layer and the
  current weights. The moments are constants for the gradient, and need one public pass per step.
- With the example (`OwnPublicNorm`): each private example mixes in its own moments with weight 1 / (M + 1), as in the
  paper's test phase. Public examples are still normalised with public moments only.
- Through the statistics (`ThroughNorm`): as the first, but the gradient also flows through the public moments, by one
  Jacobian of all moments, which the examples of a step share.
- Jointly (`JointNorm`): exactly {x} and the M public examples, through the whole network. The activations of the public
  examples then depend on x, at M + 1 times the cost.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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
        none, one = torch.zeros_like(self.mean), torch.ones_like(self.variance)
        return F.batch_norm(scaled.reshape(x.shape), none, one, self.weight, self.bias, eps=_NONE)


class ThroughNorm(PublicNorm):
    """`PublicNorm` with moments m that are differentiable functions of all trained parameters theta.

    The gradient flows through the moments by the Jacobian J = dm / dtheta, which `take_jacobian` computes once for all
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
        none, one = torch.zeros_like(self.mean), torch.ones_like(self.variance)
        return F.batch_norm(scaled, none, one, self.weight, self.bias, eps=_NONE)

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
        none, one = scaled.new_zeros(x.shape[1]), scaled.new_ones(x.shape[1])
        return F.batch_norm(scaled, none, one, self.weight, self.bias, eps=_NONE)
