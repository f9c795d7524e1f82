"""`--normalisation`: the normalisation layers of any model, swapped for others that keep examples apart.

Swapped are batch norm, group norm and instance norm, those of timm with an activation inside among them. A layer norm
over features, as transformers have, is none of them and stays.
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
from sfumato.models.normalisation.public_batch import give_examples, take_moments
from sfumato.models.trial import evaluating

JOINT = "public-batch-joint"
"""It runs public examples once more for each private one."""
PUBLIC = ("public-batch", "public-batch-own", "public-batch-through", JOINT, "frozen-batch", "lsuv")
"""Those that need public examples."""
KINDS = (*PUBLIC, "group", "layer", "instance", "weight-standardised", "none")
MOST_JOINT = 1_000_000
"""Parameters that a model may have whose public examples are run for each private one."""
MOST_JACOBIAN = 1 << 26
"""Numbers that the Jacobian of public moments by parameters may have: 256 MiB."""
_STEPS_OF_LSUV = 10
_CLOSE = 0.01


def normalised(module: nn.Module, kind: str, examples: Tensor | None = None, *, at_once: bool = True) -> nn.Module:
    """The module, changed in place, with normalisation of that kind; gains and shifts of swapped layers are kept.

    Args:
        module: any model.
        kind: "public-batch", batch norm by the moments of public examples; "public-batch-own" and "public-batch-joint",
            by those of the example itself with them (`OwnPublicNorm`); "public-batch-through", the first, with
            the gradient through the moments; "frozen-batch", by the moments that public examples have at the initial
            weights; "lsuv", no layers, and first weights scaled on public examples
            (`unit_variance`); "group", "layer", "instance" as `norms.normalisation` makes them;
            "weight-standardised", no layers, and standardised weights of convolutions; "none".
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
            f"normalisation {kind} runs all public examples for each private one, and the model has {size:,} "
            f"parameters, more than {MOST_JOINT:,}",
            "give public-batch or public-batch-own, or a smaller model",
        )
    layers = {name: layer for name, layer in module.named_modules() if _channels(layer)}
    if not layers and kind not in ("lsuv", "weight-standardised", "none"):
        raise SfumatoError(
            f"normalisation is {kind}, and the model has no normalisation layer to put it in the place of",
            "choose a model that has some, such as lenet5,norm=batch",
        )
    moments = 2 * sum(map(_channels, layers.values()))
    if kind == "public-batch-through" and moments * size > MOST_JACOBIAN:
        raise SfumatoError(
            f"normalisation {kind} takes the Jacobian of {moments:,} moments by {size:,} parameters, which has more "
            f"than {MOST_JACOBIAN:,} numbers",
            "give public-batch, whose gradient takes moments as constants, or a smaller model",
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
            own = kind if kind in NORMS else "none"
            new = normalisation(own, _channels(layer), spatial=not isinstance(layer, nn.BatchNorm1d))
        _put(module, name, _like(layer, new))
    if kind == "weight-standardised":
        _standardised(module)
    if examples is None:
        return module
    if kind not in ("lsuv", "frozen-batch"):
        give_examples(module, examples, at_once=at_once)
    elif at_once:
        unit_variance(module, examples) if kind == "lsuv" else take_moments(module, examples)
    return module


def _channels(layer: nn.Module) -> int:
    """C of a normalisation layer; 0 for any other module."""
    if isinstance(layer, nn.GroupNorm):
        return layer.num_channels
    return layer.num_features if isinstance(layer, (_BatchNorm, _InstanceNorm)) else 0


def _like(layer: nn.Module, other: nn.Module) -> nn.Module:
    """The other layer with this one's gain and shift, and with the activation that timm's have inside."""
    with torch.no_grad():
        for name in ("weight", "bias"):
            mine, own = getattr(layer, name, None), getattr(other, name, None)
            if mine is not None:
                other.to(mine.device, mine.dtype)
            if own is not None and mine is not None:
                own.copy_(mine)
            if own is not None:
                own.requires_grad_(mine is not None and mine.requires_grad)
    inside = [part for name in ("drop", "act") if isinstance(part := getattr(layer, name, None), nn.Module)]
    inside = [part for part in inside if not isinstance(part, nn.Identity)]
    return nn.Sequential(other, *inside) if inside else other


def _put(module: nn.Module, name: str, layer: nn.Module) -> None:
    outer, _, last = name.rpartition(".")
    setattr(module.get_submodule(outer), last, layer)


def _standardised(module: nn.Module) -> None:
    """Every convolution with standardised weights in its place, with the same parameters."""
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
            _put(module, name, new)


def unit_variance(module: nn.Module, examples: Tensor) -> None:
    """Layer-wise initialisation on public data (LSUV: Mishkin and Matas 2016, arXiv 1511.06422), in place.

    Each convolution and linear layer, in the order in which the model runs them, begins with orthonormal weights and is
    divided by the standard deviation of its output on the public examples, until that is 1; biases begin at zero. The
    last layer is left as it is: it is the classifier.

    Args:
        examples: (M, ...), public.
    """
    layers = _in_order(module, examples)[:-1]
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


def _in_order(module: nn.Module, examples: Tensor) -> list[nn.Conv2d | nn.Linear]:
    layers, found = [layer for layer in module.modules() if isinstance(layer, (nn.Conv2d, nn.Linear))], {}
    _hooked(module, layers, lambda layer, *_: found.setdefault(layer), examples)
    return list(found)


def _output(module: nn.Module, layer: nn.Module, examples: Tensor) -> Tensor:
    found: list[Tensor] = []
    _hooked(module, [layer], lambda _, __, output: found.append(output), examples)
    return found[0]


def _hooked(module: nn.Module, layers: Sequence[nn.Module], hook: Callable[..., None], examples: Tensor) -> None:
    handles = [layer.register_forward_hook(hook) for layer in layers]
    try:
        with evaluating(module), torch.no_grad():
            module(examples)
    finally:
        for handle in handles:
            handle.remove()
