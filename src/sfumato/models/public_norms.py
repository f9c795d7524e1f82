"""`--normalisation`: replaces the normalisation layers of any model by layers that do not mix examples; and the public
examples of some of these layers, stored as buffers of the model and so in its file, with their moments.

Batch norm, group norm and instance norm are replaced, including timm's layers with a built-in activation. Layer norm
over features, as in transformers, is kept. Moments depend on the weights, and are recomputed whenever other weights are
loaded into the model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from sfumato._checks import SfumatoError, one_of
from sfumato.models.norms import JointNorm, OwnPublicNorm, PublicNorm, ThroughNorm, normalisation
from sfumato.models.trial import evaluation_mode

EXAMPLES = "public_examples"
TAKEN_AT = "statistics_taken_at"
"""Buffers of the model: the public examples (M, ...), and a hash of the weights to which the moments belong."""
_AT_ONCE = 64


def store_examples(module: nn.Module, examples: Tensor, *, at_once: bool = True) -> None:
    """Stores the public examples (M, ...) in a model, and computes their moments.

    The moments are recomputed whenever other weights are loaded.

    Args:
        at_once: whether to compute the moments now; otherwise they are computed when weights are loaded.

    Raises:
        SfumatoError: a layer runs more than once per pass, so one pair of moments does not suffice.
    """
    module.register_buffer(EXAMPLES, examples.detach().clone())
    if any(isinstance(layer, JointNorm) for layer in module.modules()):
        module.register_forward_pre_hook(_with_public)
        module.register_forward_hook(_without_public)
        return
    if _through_norms(module):
        module.register_forward_pre_hook(_with_jacobian)
        module.register_forward_hook(_without_jacobian, always_call=True)
    module.register_buffer(TAKEN_AT, torch.zeros(32, dtype=torch.uint8))
    module.register_load_state_dict_post_hook(_renew)
    if at_once:
        refresh(module)


def refresh(module: nn.Module) -> None:
    """Recomputes the moments of the public examples at the current weights. Does nothing for a model without any.

    The public examples are run once in evaluation mode, and each layer stores the moments of its inputs. If the
    gradient flows through the moments, their Jacobian is computed too.

    **Guarantee.** A function of released weights and of public examples.
    """
    if hasattr(module, TAKEN_AT):
        _take_at_current_weights(module)
        store_jacobian(module, getattr(module, EXAMPLES))


def _take_at_current_weights(module: nn.Module) -> None:
    store_moments(module, getattr(module, EXAMPLES))
    getattr(module, TAKEN_AT).copy_(_code(module))
    for layer in _through_norms(module):
        layer.jacobian = None  # belongs to other weights


def store_moments(module: nn.Module, examples: Tensor) -> None:
    """Stores in each `PublicNorm` the moments of its inputs from public examples (M, ...); see `refresh`."""
    layers = {name: layer for name, layer in module.named_modules() if isinstance(layer, PublicNorm)}
    with evaluation_mode(module), torch.no_grad():
        passes = _passes(module, layers, examples)
    wrong = [name for name, count in passes.items() if count != 1]
    if wrong:
        raise SfumatoError(
            f"normalisation layer {wrong[0]!r} runs {passes[wrong[0]]} times per pass, but has one pair of moments",
            "give another normalisation, such as group",
        )


def _passes(module: nn.Module, layers: Mapping[str, PublicNorm], examples: Tensor) -> dict[str, int | None]:
    """Runs the examples while the layers store moments, and returns how often each layer ran."""
    for layer in layers.values():
        layer.passes = 0
    try:
        module(examples)
        return {name: layer.passes for name, layer in layers.items()}
    finally:
        for layer in layers.values():
            layer.passes = None


def store_jacobian(module: nn.Module, examples: Tensor) -> None:
    """Stores in each `ThroughNorm` the Jacobian (2 C, P) of its moments by all P parameters."""
    layers = {name: layer for name, layer in module.named_modules() if isinstance(layer, ThroughNorm)}
    if not layers:
        return
    trained = list(module.parameters())
    fixed = [parameter for parameter in trained if not parameter.requires_grad]
    try:
        for parameter in fixed:  # the parameter may be unfrozen later without a further pass
            parameter.requires_grad_(True)
        with evaluation_mode(module), torch.enable_grad():
            _passes(module, layers, examples)
            moments = torch.cat([moment for layer in layers.values() for moment in layer.moments or ()])
            rows = []
            for directions in torch.eye(len(moments), dtype=moments.dtype, device=moments.device).split(_AT_ONCE):
                gradients = torch.autograd.grad(
                    moments, trained, directions, is_grads_batched=True, retain_graph=True, allow_unused=True
                )
                columns = [
                    value.new_zeros(len(directions), value.numel()) if gradient is None else gradient.flatten(1)
                    for gradient, value in zip(gradients, trained, strict=True)
                ]  # zero for a parameter on which no moment depends
                rows.append(torch.cat(columns, dim=1))
    finally:
        for parameter in fixed:
            parameter.requires_grad_(False)
        for layer in layers.values():
            layer.moments = None
    whole = torch.cat(rows).split([2 * len(layer.mean) for layer in layers.values()])
    for layer, jacobian in zip(layers.values(), whole, strict=True):
        layer.jacobian = jacobian


def _through_norms(module: nn.Module) -> list[ThroughNorm]:
    return [layer for layer in module.modules() if isinstance(layer, ThroughNorm)]


def _with_jacobian(module: nn.Module, _: Any) -> None:
    """Sets differentiable moments for one training pass."""
    layers = _through_norms(module)
    if not module.training or any(layer.passes is not None for layer in layers):
        return
    if any(layer.jacobian is None for layer in layers):
        raise SfumatoError(
            "the moments of public examples have no Jacobian at these weights", "call `sfumato.models.refresh` first"
        )
    theta = torch.cat([value.flatten() for value in module.parameters()])
    zero = theta - theta.detach()
    for layer in layers:
        mean, variance = (layer.jacobian @ zero).chunk(2)  # type: ignore[operator]
        layer.moments = layer.mean + mean, layer.variance + variance


def _without_jacobian(module: nn.Module, *_: Any) -> None:
    for layer in _through_norms(module):
        if layer.passes is None:
            layer.moments = None


def reset_moments(module: nn.Module) -> None:
    """Resets the moments of all layers to 0 and 1, which depend on no data."""
    for layer in module.modules():
        if isinstance(layer, PublicNorm):
            layer.mean.zero_()
            layer.variance.fill_(1)


def as_batch_norm(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Converts weights with public moments to those of the same model with batch norm.

    The moments become running statistics. Weights without public examples are returned unchanged.
    """
    if EXAMPLES not in stored:
        return dict(stored)
    weights = {name: value for name, value in stored.items() if name not in (EXAMPLES, TAKEN_AT)}
    for layer in [name.removesuffix(".mean") for name in weights if name.endswith(".mean")]:
        if f"{layer}.variance" in weights:
            weights[f"{layer}.running_mean"] = weights.pop(f"{layer}.mean")
            weights[f"{layer}.running_var"] = weights.pop(f"{layer}.variance")
            weights[f"{layer}.num_batches_tracked"] = torch.zeros((), dtype=torch.int64)
    return weights


def refreshed_weights(module: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the weights with moments recomputed for them, as for averaged parameters in place of the last ones.

    Args:
        module: a model for these weights; unchanged. Without public examples the weights are returned unchanged.
    """
    if not hasattr(module, TAKEN_AT):
        return dict(weights)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    module.load_state_dict(dict(weights))
    recomputed = {name: value.detach().clone() for name, value in module.state_dict().items()}
    module.load_state_dict(before)
    return recomputed


def _renew(module: nn.Module, _: Any) -> None:
    if not torch.equal(getattr(module, TAKEN_AT).cpu(), _code(module)):
        _take_at_current_weights(module)


def _code(module: nn.Module) -> Tensor:
    """SHA-256 (32,) of everything the moments depend on: parameters, public examples, and other buffers."""
    layers = [name for name, layer in module.named_modules() if isinstance(layer, PublicNorm)]
    skipped = {TAKEN_AT, *(f"{name}.{moment}" for name in layers for moment in ("mean", "variance"))}
    code = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        if name not in skipped:
            code.update(name.encode())
            code.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return torch.frombuffer(bytearray(code.digest()), dtype=torch.uint8)


def _with_public(module: nn.Module, inputs: tuple[Tensor]) -> Tensor:
    """Inserts the public examples after each example: (N, ...) to (N (M + 1), ...)."""
    (x,) = inputs
    public = getattr(module, EXAMPLES)
    copies = public.unsqueeze(0).expand(len(x), *public.shape)
    return torch.cat([x.unsqueeze(1), copies.to(x.dtype)], dim=1).flatten(0, 1)


def _without_public(module: nn.Module, _: Any, outputs: Tensor) -> Tensor:
    """Removes the outputs of the public examples: (N (M + 1), ...) to (N, ...)."""
    return outputs.unflatten(0, (-1, len(getattr(module, EXAMPLES)) + 1))[:, 0]


JOINT, THROUGH = "public-batch-joint", "public-batch-through"
"""Runs all public examples for each private example; the gradient flows through the public moments."""
PUBLIC = ("public-batch", "public-batch-own", THROUGH, JOINT)
"""The kinds that need public examples."""
KINDS = (*PUBLIC, "group", "layer", "instance", "none")
MOST_JOINT, MOST_JACOBIAN = 1_000_000, 1 << 26
"""Largest number of parameters for `JOINT`, and of entries of the Jacobian of the public moments: 256 MiB."""


def replace_norms(module: nn.Module, kind: str, examples: Tensor | None = None, *, at_once: bool = True) -> nn.Module:
    """Replaces the normalisation layers of a module, in place. Gains and shifts of replaced layers are kept.

    Args:
        module: any model.
        kind: "public-batch", batch norm with the moments of public examples; "public-batch-own" and
            "public-batch-joint", with the moments of the example and the public examples (`norms`);
            "public-batch-through", as the first, with the gradient through the moments; "group", "layer", "instance"
            or "none" as in `norms.normalisation`.
        examples: M public examples as the model takes them, where `kind` is among `PUBLIC`.
        at_once: whether moments are computed now; otherwise they are computed when weights are loaded.

    **Guarantee.** All kinds keep private examples apart: an example's output is a function of that example, of weights
    and of public examples.

    Errors: `SfumatoError` for an unknown kind, a model without normalisation layers where some are needed, examples
    that are missing or not wanted, and a model that is too large for the kind.
    """
    one_of(KINDS, normalisation=kind)
    if (examples is not None) != (kind in PUBLIC):
        raise SfumatoError(
            f"normalisation {kind} takes {'public' if kind in PUBLIC else 'no public'} examples",
            f"{'give' if kind in PUBLIC else 'leave out'} public_data",
        )
    layers = {name: layer for name, layer in module.named_modules() if _channels(layer)}
    if not layers and kind != "none":
        raise SfumatoError(
            f"normalisation is {kind}, but the model has no normalisation layer to replace",
            "choose a model with normalisation layers, such as lenet5,norm=batch",
        )
    moments, size = 2 * sum(map(_channels, layers.values())), sum(value.numel() for value in module.parameters())
    if (kind == JOINT and size > MOST_JOINT) or (kind == THROUGH and moments * size > MOST_JACOBIAN):
        raise SfumatoError(
            f"normalisation {kind} costs too much for a model of {size:,} parameters and {moments:,} moments",
            "give public-batch or public-batch-own, or a smaller model",
        )
    public = 0 if examples is None else len(examples)
    by_examples: dict[str, Callable[..., nn.Module]] = {
        "public-batch": PublicNorm,
        THROUGH: ThroughNorm,
        "public-batch-own": partial(OwnPublicNorm, public=public),
        JOINT: partial(JointNorm, public=public),
    }
    for name, layer in layers.items():
        if kind in by_examples:
            new = by_examples[kind](_channels(layer), eps=layer.eps)
        else:
            new = normalisation(kind, _channels(layer), spatial=not isinstance(layer, nn.BatchNorm1d))
        outer, _, last = name.rpartition(".")
        setattr(module.get_submodule(outer), last, _with_gain_of(layer, new))
    if examples is not None:
        store_examples(module, examples, at_once=at_once)
    return module


def _channels(layer: nn.Module) -> int:
    """C of a normalisation layer; 0 for any other module."""
    if isinstance(layer, nn.GroupNorm):
        return layer.num_channels
    return layer.num_features if isinstance(layer, (_BatchNorm, _InstanceNorm)) else 0


def _with_gain_of(layer: nn.Module, other: nn.Module) -> nn.Module:
    """The other layer with this layer's gain and shift, followed by the built-in activation of timm's layers."""
    with torch.no_grad():
        for name in ("weight", "bias"):
            source, target = getattr(layer, name, None), getattr(other, name, None)
            if source is not None:
                other.to(source.device, source.dtype)
            if target is not None and source is not None:
                target.copy_(source)
            if target is not None:
                target.requires_grad_(source is not None and source.requires_grad)
    built_in = [part for name in ("drop", "act") if isinstance(part := getattr(layer, name, None), nn.Module)]
    built_in = [part for part in built_in if not isinstance(part, nn.Identity)]
    return nn.Sequential(other, *built_in) if built_in else other
