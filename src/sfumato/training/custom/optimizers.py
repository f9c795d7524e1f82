"""Checks of the user's own optimizers. They are tried on synthetic numbers before anything is spent."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sfumato._checks import SfumatoError
from sfumato.optim import FACTOR
from sfumato.runs.checkpoint import roundtrip

Makes = Callable[..., torch.optim.Optimizer]
"""An optimizer class, which also takes `lr`; or a callable that makes an optimizer from a list of parameters."""
_EXAMPLE = "give torch.optim.AdamW, or lambda parameters: torch.optim.AdamW(parameters, lr=0.001)"
_ITS_OWN = ("momentum", "weight_decay", "pretrained_rate")


def rate_of(make: Makes, choices: Mapping[str, Any]) -> float:
    """The learning rate for the settings: for a class the chosen one or its default, else the optimizer's largest.

    Errors: `SfumatoError` for choices that the optimizer itself has.
    """
    itself = _ITS_OWN if isinstance(make, type) else ("learning_rate", *_ITS_OWN)
    if both := [name for name in itself if choices.get(name) is not None]:
        raise SfumatoError(
            f"{', '.join(both)} {'is' if len(both) == 1 else 'are'} given with your own optimizer",
            "set it in the optimizer: optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=0.001)",
        )
    if (chosen := choices.get("learning_rate")) is not None:
        return chosen
    return max(_rates(_on_trial(make)))


def name_of(make: Makes) -> str:
    """The name of the optimizer's class."""
    return type(_on_trial(make)).__name__


def _on_trial(make: Makes) -> torch.optim.Optimizer:
    """The optimizer over a synthetic parameter."""
    return _make_optimizer(make, [nn.Parameter(torch.zeros(2, 2))])


def make_optimizer(make: Makes, parameters: Mapping[str, Tensor], rate: float) -> torch.optim.Optimizer:
    """The optimizer over these parameters, with each group's share of the learning rate.

    Errors: `SfumatoError` for an object that is no optimizer, updates other tensors, leaves some out, or needs a
    closure.
    """
    found = _make_optimizer(partial(make, lr=rate) if isinstance(make, type) else make, list(parameters.values()))
    refuse_foreign(found, parameters)
    _refuse_closure(found)
    for group, own in zip(found.param_groups, _rates(found), strict=True):
        group[FACTOR] = own / rate
    return found


def _refuse_closure(optimizer: torch.optim.Optimizer) -> None:
    _, *given = inspect.signature(
        type(optimizer).step
    ).parameters.values()  # of the class: schedulers wrap the instance's method
    needed = [one.name for one in given if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD]
    if needed:
        raise SfumatoError(
            f"{type(optimizer).__name__}.step needs {', '.join(needed)}: it would compute further losses within a "
            "step, without clipping and noise",
            "give an optimizer that only needs gradients, such as torch.optim.AdamW",
        )


def refuse_unfit(optimizer: torch.optim.Optimizer) -> None:
    """Refuse an optimizer that already has a state, needs more than gradients, or whose state cannot be saved.

    A copy is tried on small synthetic parameters; the optimizer itself stays unchanged.

    **Guarantee.** The optimizer holds nothing of earlier gradients when the run begins: momentum of gradients from a
    loop over the same records without noise would be released with the model.
    """
    _refuse_closure(optimizer)
    if any(float(one.get("step", 1)) for one in optimizer.state.values() if one):
        raise SfumatoError(
            f"the optimizer {type(optimizer).__name__} already has a state, such as momentum of plain gradients",
            "make a new one over the model's parameters for this run",
        )
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    most = None if optimizer.state else 2  # an existing state has the parameters' shapes
    small = {id(one): nn.Parameter(torch.ones([min(most or n, n) for n in one.shape])) for one in parameters}
    trial = copy.deepcopy(optimizer, dict(small))  # deepcopy's memo replaces the parameters by the small ones
    for one in small.values():
        one.grad = torch.ones_like(one)
    try:
        type(trial).step(trial)
    except Exception as error:
        raise _fails(trial, error) from error
    roundtrip(trial.state_dict())


def _fails(optimizer: torch.optim.Optimizer, error: Exception) -> SfumatoError:
    return SfumatoError(
        f"{type(optimizer).__name__} fails on a step with gradients alone: {type(error).__name__}: "
        f"{' '.join(str(error).split())}",
        "give an optimizer that only needs gradients, such as torch.optim.AdamW",
    )


def refuse_foreign(optimizer: torch.optim.Optimizer, trained: Mapping[str, Tensor]) -> None:
    """Refuse an optimizer whose parameters are not exactly the trained ones."""
    moved = {id(one) for group in optimizer.param_groups for one in group["params"]}
    if foreign := len(moved - {id(one) for one in trained.values()}):
        raise SfumatoError(
            f"the optimizer has {foreign} tensors that are not trainable parameters of the model",
            "make it over the parameters of this model: optimizer(model.parameters(), ...)",
        )
    if missing := [name for name, one in trained.items() if id(one) not in moved]:
        raise SfumatoError(
            f"the optimizer leaves out {len(missing)} trainable parameters of the model, such as {missing[0]}, which "
            "would cost privacy without being trained",
            "give it all of them, or set requires_grad=False for those that are not trained",
        )


def _make_optimizer(make: Makes, parameters: list[Any]) -> torch.optim.Optimizer:
    try:
        found = make(parameters)
    except SfumatoError:
        raise
    except Exception as error:
        raise SfumatoError(
            f"optimizer fails on a list of parameters: {type(error).__name__}: {' '.join(str(error).split())}", _EXAMPLE
        ) from error
    if not isinstance(found, torch.optim.Optimizer):
        raise SfumatoError(f"optimizer must make a torch.optim.Optimizer, got {type(found).__name__}", _EXAMPLE)
    return found


def _rates(optimizer: torch.optim.Optimizer) -> list[float]:
    """The learning rate of each group."""
    found: list[Any] = [group.get("lr") for group in optimizer.param_groups]
    if any(one is None for one in found) or not max(map(float, found)) > 0:
        raise SfumatoError(
            f"{type(optimizer).__name__} needs a learning rate above 0, got {found}",
            "give it one: lambda parameters: torch.optim.AdamW(parameters, lr=0.001)",
        )
    return [float(one) for one in found]
