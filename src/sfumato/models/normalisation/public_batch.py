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

The public examples, and the moments, are buffers of the model, so they travel with its file. Moments belong to weights:
whenever other weights are loaded into the model, they are taken anew.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfumato._checks import SfumatoError
from sfumato.models.evaluating import evaluating

EXAMPLES = "public_examples"
TAKEN_AT = "statistics_taken_at"
"""Buffers of the model: the public examples (M, ...), and which weights the moments are of."""
_AT_ONCE = 64
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


def give_examples(module: nn.Module, examples: Tensor, *, at_once: bool = True) -> None:
    """Give a model the public examples (M, ...) that its layers normalise by, and take their moments.

    Moments are taken again whenever weights are loaded that they are not of.

    Args:
        at_once: whether moments are taken now; otherwise when weights are loaded.

    Errors: `SfumatoError` where a layer is run more than once in a pass, so that one pair of moments would not do.
    """
    module.register_buffer(EXAMPLES, examples.detach().clone())
    if any(isinstance(layer, JointNorm) for layer in module.modules()):
        module.register_forward_pre_hook(_with_public)
        module.register_forward_hook(_of_the_example)
        return
    if _through(module):
        module.register_forward_pre_hook(_with_jacobian)
        module.register_forward_hook(_without_jacobian, always_call=True)
    module.register_buffer(TAKEN_AT, torch.zeros(32, dtype=torch.uint8))
    module.register_load_state_dict_post_hook(_renew)
    if at_once:
        refresh(module)


def refresh(module: nn.Module) -> None:
    """Take the moments of the public examples at the present weights; nothing for a model without any.

    One pass of the public examples, in evaluation mode, in which each layer's moments are those of what reaches it; and
    their Jacobian, where the gradient is to flow through them.

    **Guarantee.** A function of released weights and of public examples.
    """
    if hasattr(module, TAKEN_AT):
        _take_at_present_weights(module)
        take_jacobian(module, getattr(module, EXAMPLES))


def _take_at_present_weights(module: nn.Module) -> None:
    take_moments(module, getattr(module, EXAMPLES))
    getattr(module, TAKEN_AT).copy_(_code(module))
    for layer in _through(module):
        layer.jacobian = None  # that of other weights


def take_moments(module: nn.Module, examples: Tensor) -> None:
    """Store in each `PublicNorm` the moments of what reaches it from public examples (M, ...): see `refresh`."""
    layers = {name: layer for name, layer in module.named_modules() if isinstance(layer, PublicNorm)}
    with evaluating(module), torch.no_grad():
        passes = _passed(module, layers, examples)
    odd = [name for name, count in passes.items() if count != 1]
    if odd:
        raise SfumatoError(
            f"normalisation layer {odd[0]!r} is run {passes[odd[0]]} times in a pass, and has one pair of moments",
            "give another normalisation, such as group",
        )


def _passed(module: nn.Module, layers: Mapping[str, PublicNorm], examples: Tensor) -> dict[str, int | None]:
    """Run the examples while the layers take moments; how often each was run."""
    for layer in layers.values():
        layer.passes = 0
    try:
        module(examples)
        return {name: layer.passes for name, layer in layers.items()}
    finally:
        for layer in layers.values():
            layer.passes = None


def take_jacobian(module: nn.Module, examples: Tensor) -> None:
    """Store in each `ThroughNorm` the Jacobian (2 C, P) of its moments by the P numbers of all parameters."""
    layers = {name: layer for name, layer in module.named_modules() if isinstance(layer, ThroughNorm)}
    if not layers:
        return
    trained = list(module.parameters())
    fixed = [parameter for parameter in trained if not parameter.requires_grad]
    try:
        for parameter in fixed:  # whether it is trained may change without a further pass
            parameter.requires_grad_(True)
        with evaluating(module), torch.enable_grad():
            _passed(module, layers, examples)
            moments = torch.cat([one for layer in layers.values() for one in layer.moments or ()])
            rows = []
            for directions in torch.eye(len(moments), dtype=moments.dtype, device=moments.device).split(_AT_ONCE):
                found = torch.autograd.grad(
                    moments, trained, directions, is_grads_batched=True, retain_graph=True, allow_unused=True
                )
                rows.append(
                    torch.cat([_columns(*each, len(directions)) for each in zip(found, trained, strict=True)], dim=1)
                )
    finally:
        for parameter in fixed:
            parameter.requires_grad_(False)
        for layer in layers.values():
            layer.moments = None
    whole = torch.cat(rows).split([2 * len(layer.mean) for layer in layers.values()])
    for layer, jacobian in zip(layers.values(), whole, strict=True):
        layer.jacobian = jacobian


def _columns(found: Tensor | None, parameter: Tensor, rows: int) -> Tensor:
    """The part of a Jacobian that belongs to a parameter, zero where nothing depends on it."""
    return parameter.new_zeros(rows, parameter.numel()) if found is None else found.flatten(1)


def _through(module: nn.Module) -> list[ThroughNorm]:
    return [layer for layer in module.modules() if isinstance(layer, ThroughNorm)]


def _with_jacobian(module: nn.Module, _: Any) -> None:
    """Moments with their derivative, for the length of a pass of examples in training."""
    layers = _through(module)
    if not module.training or any(layer.passes is not None for layer in layers):
        return
    if any(layer.jacobian is None for layer in layers):
        raise SfumatoError(
            "the moments of public examples have no Jacobian at these weights", "call `sfumato.models.refresh` before"
        )
    theta = torch.cat([value.flatten() for value in module.parameters()])
    still = theta - theta.detach()
    for layer in layers:
        mean, variance = (layer.jacobian @ still).chunk(2)  # type: ignore[operator]
        layer.moments = layer.mean + mean, layer.variance + variance


def _without_jacobian(module: nn.Module, *_: Any) -> None:
    for layer in _through(module):
        if layer.passes is None:
            layer.moments = None


def forget_moments(module: nn.Module) -> None:
    """Make the moments of all layers 0 and 1, which are nobody's."""
    for layer in module.modules():
        if isinstance(layer, PublicNorm):
            layer.mean.zero_()
            layer.variance.fill_(1)


def as_batch_norm(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A model's weights with public moments, as those of the same model with batch norm, whose running statistics they
    become; other weights as they are."""
    if EXAMPLES not in stored:
        return dict(stored)
    found = {name: value for name, value in stored.items() if name not in (EXAMPLES, TAKEN_AT)}
    for layer in [name.removesuffix(".mean") for name in found if name.endswith(".mean")]:
        if f"{layer}.variance" in found:
            found[f"{layer}.running_mean"] = found.pop(f"{layer}.mean")
            found[f"{layer}.running_var"] = found.pop(f"{layer}.variance")
            found[f"{layer}.num_batches_tracked"] = torch.zeros((), dtype=torch.int64)
    return found


def renewed(module: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights with moments that are their own: a model's, with averaged parameters in place of the last ones.

    Args:
        module: of that shape, which is given them; nothing happens to one without public examples.
    """
    if not hasattr(module, TAKEN_AT):
        return dict(weights)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    module.load_state_dict(dict(weights))
    found = {name: value.detach().clone() for name, value in module.state_dict().items()}
    module.load_state_dict(before)
    return found


def _renew(module: nn.Module, _: Any) -> None:
    if not torch.equal(getattr(module, TAKEN_AT).cpu(), _code(module)):
        _take_at_present_weights(module)


def _code(module: nn.Module) -> Tensor:
    """SHA-256 (32,) of all that moments depend on: parameters, public examples, buffers but the moments."""
    own = {TAKEN_AT}
    own |= {
        f"{name}.{of}" for name, layer in module.named_modules() if isinstance(layer, PublicNorm) for of in _MOMENTS
    }
    code = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        if name not in own:
            code.update(name.encode())
            code.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return torch.frombuffer(bytearray(code.digest()), dtype=torch.uint8)


_MOMENTS = ("mean", "variance")


def _with_public(module: nn.Module, inputs: tuple[Tensor]) -> Tensor:
    """Each example with the public ones after it: (N, ...) to (N (M + 1), ...)."""
    (x,) = inputs
    public = getattr(module, EXAMPLES)
    beside = public.unsqueeze(0).expand(len(x), *public.shape)
    return torch.cat([x.unsqueeze(1), beside.to(x.dtype)], dim=1).flatten(0, 1)


def _of_the_example(module: nn.Module, _: Any, outputs: Tensor) -> Tensor:
    """The outputs of the examples alone: (N (M + 1), ...) to (N, ...)."""
    return outputs.unflatten(0, (-1, len(getattr(module, EXAMPLES)) + 1))[:, 0]
