"""Models that compute over the batch, recognised by their outputs: a user's own batch norm can have any name.

Each example has its own run of the model, as a batch of one. A layer that takes means over the batch then takes them
over this one example, so an activation minus its mean is zero. Training would follow noise, without any error.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from sfumato._checks import SfumatoError
from sfumato.gradients.checks.without_randomness import WithoutRandomness
from sfumato.gradients.examples import Tree, call_model, in_precision, tree_map, tree_tensors

_SHARP, _LOOSE = 1e-6, 5e-2
"""Largest difference of a row due to rounding, relative to its largest number: in float64, and in the model's type."""


def refuse_mixing(model: nn.Module, inputs: Tree, views: int) -> None:
    """Refuses a model whose outputs for an example differ between a batch and the example alone.

    The error names the first such module. The examples are compared with a batch of all of them; integers, which may be
    equal in all examples, are shifted along their last axis first. A model that does not run on a batch, or does not
    return a tensor, is not checked.

    Args:
        model: a model without branches that depend on an example's values.
        inputs: synthetic inputs, (E, ...) if views is 1, (E, K, ...) otherwise.
    """
    inputs = tree_map(_distinct, inputs)
    with torch.no_grad(), WithoutRandomness(), contextlib.suppress(_UncheckableError):
        checked, relative = model, _LOOSE
        with contextlib.suppress(Exception):  # a model with hard-coded types has no float64 form
            doubled = copy.deepcopy(model)._apply(_double)
            _run(doubled, tree_map(lambda one: one[:1] if views == 1 else one[0], tree_map(_double, inputs)))
            checked, inputs, relative = doubled, tree_map(_double, inputs), _SHARP
        alone = [_run(checked, tree_map(lambda one, row=row: _row(one, row, views), inputs)) for row in _rows(inputs)]
        together = _run(checked, tree_map(lambda one: one if views == 1 else one.flatten(0, 1), inputs))
        if _differ(alone, together, relative):
            _refuse(_place(checked, inputs, views, relative))


class _UncheckableError(Exception):
    """The model cannot be checked by its outputs."""


def _refuse(place: str) -> None:
    raise SfumatoError(
        f"{place} gives an example other outputs in a batch than alone: it computes over the batch, like a batch norm, "
        "but each example is trained by itself",
        "make it compute over each example's own numbers (axes after the first), like torch.nn.GroupNorm and "
        "LayerNorm, or use stored statistics",
    )


def _rows(inputs: Tree) -> range:
    return range(len(tree_tensors(inputs)[0]))


def _row(tensor: Tensor, row: int, views: int) -> Tensor:
    return tensor[row : row + 1] if views == 1 else tensor[row]


def _double(tensor: Tensor) -> Tensor:
    return in_precision(tensor, torch.float64)


def _distinct(tensor: Tensor) -> Tensor:
    """Shifts integers along their last axis, by one place more in each row."""
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dim() < 2:
        return tensor
    return torch.stack([row.roll(place, -1) for place, row in enumerate(tensor)])


def _run(model: nn.Module, inputs: Tree) -> Tensor:
    """The outputs of a batch."""
    state = {name: value.detach().clone() for name, value in (*model.named_parameters(), *model.named_buffers())}
    try:
        outputs = call_model(model, state, tree_map(torch.clone, inputs))
    except Exception:
        raise _UncheckableError from None
    outputs = getattr(outputs, "logits", outputs)
    if not isinstance(outputs, Tensor) or outputs.dim() < 1:
        raise _UncheckableError
    return outputs


def _differ(alone: list[Tensor], together: Tensor, relative: float) -> bool:
    """Whether any example's rows differ; False if the rows of a batch are not those of its examples."""
    if sum(map(len, alone)) != len(together) or any(one.shape[1:] != together.shape[1:] for one in alone):
        return False
    for one, other in zip(alone, together.split([len(one) for one in alone]), strict=True):
        if not torch.isfinite(one).all():
            continue
        largest = max((float(some.abs().max()) for some in (one, other) if some.numel()), default=0.0)
        if not bool(((one - other).abs() <= relative * largest).all()):
            return True
    return False


_Call = tuple[str, list[Tensor], Tensor]
"""A module's name, its input tensors, and its outputs."""


def _place(model: nn.Module, inputs: Tree, views: int, relative: float) -> str:
    """The first module to finish whose outputs differ for the same inputs."""
    with _recorded(model) as begin:
        alone = []
        for row in _rows(inputs):
            alone.append(begin())
            _run(model, tree_map(lambda one, row=row: _row(one, row, views), inputs))
        together = begin()
        _run(model, tree_map(lambda one: one if views == 1 else one.flatten(0, 1), inputs))
    for number, (name, arguments, outputs) in enumerate(together):
        same = [run[number] for run in alone if number < len(run) and run[number][0] == name]
        if not name or len(same) < len(alone) or any(len(run[1]) != len(arguments) for run in same):
            continue
        if any(_differ([run[1][place] for run in same], one, relative) for place, one in enumerate(arguments)):
            continue
        if _differ([run[2] for run in same], outputs, relative):
            return f"module {name!r} ({type(model.get_submodule(name)).__name__})"
    return f"the model ({type(model).__name__})"


@contextlib.contextmanager
def _recorded(model: nn.Module) -> Iterator[Callable[[], list[_Call]]]:
    """Yields a function that starts a new list of the modules' calls, in the order in which they finish."""
    calls: list[_Call] = []

    def begin() -> list[_Call]:
        nonlocal calls
        calls = []
        return calls

    def hook(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def record(_module: nn.Module, inputs: tuple[Any, ...], outputs: Any) -> None:
            if isinstance(outputs, Tensor) and outputs.dim():
                arguments = [one.detach().clone() for one in inputs if isinstance(one, Tensor) and one.dim()]
                calls.append((name, arguments, outputs.detach().clone()))

        return record

    handles = [module.register_forward_hook(hook(name)) for name, module in model.named_modules()]
    try:
        yield begin
    finally:
        for handle in handles:
            handle.remove()
