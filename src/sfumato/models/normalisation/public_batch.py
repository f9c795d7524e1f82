"""The public examples that a model normalises by, buffers and so part of its file, and the moments that they give.

Moments belong to weights: whenever other weights are loaded into the model, they are taken anew.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sfumato._checks import SfumatoError
from sfumato.models.normalisation.norms import JointNorm, PublicNorm, ThroughNorm
from sfumato.models.trial import evaluating

EXAMPLES = "public_examples"
TAKEN_AT = "statistics_taken_at"
"""Buffers of the model: the public examples (M, ...), and which weights the moments are of."""
_AT_ONCE = 64


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
    wrong = [name for name, count in passes.items() if count != 1]
    if wrong:
        raise SfumatoError(
            f"normalisation layer {wrong[0]!r} is run {passes[wrong[0]]} times in a pass, and has one pair of moments",
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
    copies = public.unsqueeze(0).expand(len(x), *public.shape)
    return torch.cat([x.unsqueeze(1), copies.to(x.dtype)], dim=1).flatten(0, 1)


def _of_the_example(module: nn.Module, _: Any, outputs: Tensor) -> Tensor:
    """The outputs of the examples alone: (N (M + 1), ...) to (N, ...)."""
    return outputs.unflatten(0, (-1, len(getattr(module, EXAMPLES)) + 1))[:, 0]
