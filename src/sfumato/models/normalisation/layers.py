"""`--normalisation`: replaces the normalisation layers of any model by layers that do not mix examples.

Batch norm, group norm and instance norm are replaced, including timm's layers with a built-in activation. Layer norm
over features, as in transformers, is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from sfumato._checks import SfumatoError, one_of
from sfumato.models.normalisation.norms import (
    NORMS,
    JointNorm,
    OwnPublicNorm,
    PublicNorm,
    ThroughNorm,
    WSConv2d,
    normalisation,
)
from sfumato.models.normalisation.public_batch import store_examples, store_moments
from sfumato.models.trial import evaluation_mode

JOINT = "public-batch-joint"
"""Runs all public examples for each private example."""
PUBLIC = ("public-batch", "public-batch-own", "public-batch-through", JOINT, "frozen-batch", "lsuv")
"""The kinds that need public examples."""
KINDS = (*PUBLIC, "group", "layer", "instance", "weight-standardised", "none")
MOST_JOINT = 1_000_000
"""Largest number of parameters of a model for `JOINT`."""
MOST_JACOBIAN = 1 << 26
"""Largest number of entries of the Jacobian of the public moments: 256 MiB."""
_STEPS_OF_LSUV = 10
_CLOSE = 0.01


def replace_norms(module: nn.Module, kind: str, examples: Tensor | None = None, *, at_once: bool = True) -> nn.Module:
    """Replaces the normalisation layers of a module, in place. Gains and shifts of replaced layers are kept.

    Args:
        module: any model.
        kind: "public-batch", batch norm with the moments of public examples; "public-batch-own" and
            "public-batch-joint", with the moments of the example and the public examples (`norms`);
            "public-batch-through", as the first, with the gradient through the moments; "frozen-batch", with the
            moments of public examples at the initial weights; "lsuv", no layers, and initial weights scaled on public
            examples (`lsuv_init`); "group", "layer", "instance" as in `norms.normalisation`;
            "weight-standardised", no layers, and convolutions with weight standardisation; "none".
        examples: M public examples as the model takes them, where `kind` is among `PUBLIC`.
        at_once: whether moments are taken and first weights scaled; otherwise weights are about to be loaded.

    **Guarantee.** All kinds keep private examples apart: an example's output is a function of that example, of weights
    and of public examples.

    Errors: `SfumatoError` for an unknown kind, a model without normalisation layers where some are needed, and examples
    that are missing or not wanted.
    """
    one_of("normalisation", kind, KINDS)
    if (examples is not None) != (kind in PUBLIC):
        raise SfumatoError(
            f"normalisation {kind} takes {'public' if kind in PUBLIC else 'no public'} examples",
            f"{'give' if kind in PUBLIC else 'leave out'} public_data",
        )
    size = sum(parameter.numel() for parameter in module.parameters())
    if kind == JOINT and size > MOST_JOINT:
        raise SfumatoError(
            f"normalisation {kind} runs all public examples for each private example, but the model has {size:,} "
            f"parameters, more than {MOST_JOINT:,}",
            "give public-batch or public-batch-own, or a smaller model",
        )
    layers = {name: layer for name, layer in module.named_modules() if _channels(layer)}
    if not layers and kind not in ("lsuv", "weight-standardised", "none"):
        raise SfumatoError(
            f"normalisation is {kind}, but the model has no normalisation layer to replace",
            "choose a model with normalisation layers, such as lenet5,norm=batch",
        )
    moments = 2 * sum(map(_channels, layers.values()))
    if kind == "public-batch-through" and moments * size > MOST_JACOBIAN:
        raise SfumatoError(
            f"normalisation {kind} needs the Jacobian of {moments:,} moments by {size:,} parameters, which has more "
            f"than {MOST_JACOBIAN:,} entries",
            "give public-batch, whose gradient treats the moments as constants, or a smaller model",
        )
    public = 0 if examples is None else len(examples)
    by_examples: dict[str, Callable[..., nn.Module]] = {
        "public-batch": PublicNorm,
        "frozen-batch": PublicNorm,
        "public-batch-through": ThroughNorm,
        "public-batch-own": partial(OwnPublicNorm, public=public),
        JOINT: partial(JointNorm, public=public),
    }
    for name, layer in layers.items():
        if kind in by_examples:
            new = by_examples[kind](_channels(layer), eps=layer.eps)
        else:
            norm = kind if kind in NORMS else "none"
            new = normalisation(norm, _channels(layer), spatial=not isinstance(layer, nn.BatchNorm1d))
        _replace(module, name, _with_gain_of(layer, new))
    if kind == "weight-standardised":
        _standardised(module)
    if examples is None:
        return module
    if kind not in ("lsuv", "frozen-batch"):
        store_examples(module, examples, at_once=at_once)
    elif at_once:
        lsuv_init(module, examples) if kind == "lsuv" else store_moments(module, examples)
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


def _replace(module: nn.Module, name: str, layer: nn.Module) -> None:
    outer, _, last = name.rpartition(".")
    setattr(module.get_submodule(outer), last, layer)


def _standardised(module: nn.Module) -> None:
    """Replaces every convolution by one with weight standardisation and the same parameters."""
    for name, layer in list(module.named_modules()):
        if type(layer) is nn.Conv2d:
            new = WSConv2d(
                layer.in_channels,
                layer.out_channels,
                layer.kernel_size,  # type: ignore[arg-type]
                stride=layer.stride,  # type: ignore[arg-type]
                padding=layer.padding,  # type: ignore[arg-type]
                dilation=layer.dilation,  # type: ignore[arg-type]
                groups=layer.groups,
                bias=layer.bias is not None,
                padding_mode=layer.padding_mode,
            )
            new.weight, new.bias = layer.weight, layer.bias
            _replace(module, name, new)


def lsuv_init(module: nn.Module, examples: Tensor) -> None:
    """Layer-sequential unit-variance initialisation on public data (LSUV: Mishkin and Matas 2016, arXiv 1511.06422).

    In the order of execution, each convolution and linear layer is initialised with orthonormal weights and zero
    biases. Its weights are divided by the standard deviation of its output on the public examples until that is 1. The
    last layer, the classifier, is not changed.

    Args:
        examples: public examples (M, ...).
    """
    layers = _execution_order(module, examples)[:-1]
    with torch.no_grad():
        for layer in layers:
            nn.init.orthogonal_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
            for _ in range(_STEPS_OF_LSUV):
                spread = _output(module, layer, examples).std(correction=0).item()
                if not math.isfinite(spread) or spread == 0 or abs(spread - 1) < _CLOSE:
                    break
                layer.weight /= spread


def _execution_order(module: nn.Module, examples: Tensor) -> list[nn.Conv2d | nn.Linear]:
    layers, executed = [layer for layer in module.modules() if isinstance(layer, (nn.Conv2d, nn.Linear))], {}
    _run_with_hook(module, layers, lambda layer, *_: executed.setdefault(layer), examples)
    return list(executed)


def _output(module: nn.Module, layer: nn.Module, examples: Tensor) -> Tensor:
    outputs: list[Tensor] = []
    _run_with_hook(module, [layer], lambda _, __, output: outputs.append(output), examples)
    return outputs[0]


def _run_with_hook(module: nn.Module, layers: Sequence[nn.Module], hook: Callable[..., None], examples: Tensor) -> None:
    handles = [layer.register_forward_hook(hook) for layer in layers]
    try:
        with evaluation_mode(module), torch.no_grad():
            module(examples)
    finally:
        for handle in handles:
            handle.remove()
