"""What a recorded call depends on besides its tensors, so that it is known when a recording no longer holds.

A recording leaves out the Python that led to it. So it may only be made where that Python can be seen to depend on
nothing but the call's tensors and on what is compared here before each use: what the model's modules and the loss hold,
and the numbers and texts that their code refers to. PyTorch, timm and their like are trusted; other code is read. What
cannot be judged (a global list, an unknown library, a hook) is never recorded.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from sfumato.gradients.checks.isolation import held
from sfumato.gradients.recordable import CannotReplay

# Libraries whose layers are functions of their inputs, of what they hold, and of torch's random numbers.
_KNOWN = ("torch", "torchvision", "timm", "transformers", "sfumato", "einops")
# Modules of Python that code may refer to: nothing in them changes, or is made by chance.
_CONSTANT = ("math", "functools", "itertools", "operator", "typing", "collections", "abc", "enum", "dataclasses")
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size, torch.memory_format)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")

Standing = dict[tuple, Any]


def standing(model: nn.Module, loss: Any) -> Standing:
    """All that is to be the same, by where it is; compare with `still`.

    Raises:
        CannotReplay: the model or the loss may depend on something else.
    """
    library = nn.modules.module
    if library._global_forward_hooks or library._global_forward_pre_hooks:
        raise CannotReplay("there are hooks of all modules")
    found: Standing = {}
    modules = [*model.modules(), *(loss.modules() if isinstance(loss, nn.Module) else ())]
    for module in modules:
        if any(vars(module)[key] for key in _HOOKS):
            raise CannotReplay(f"{type(module).__name__} has a forward hook")
    for kind in dict.fromkeys(map(type, modules)):
        if not _is_known(kind):
            found.update(_referred_by(_own_forward(kind), set(), kind))
    for place, value in held(model, loss).items():
        found["held", *place] = value
        if callable(value) and not isinstance(value, Tensor):
            found.update(_called(value, set()))
    if not isinstance(loss, nn.Module):
        found.update(_called(loss, set()))
    return found


def still(before: Standing, now: Standing) -> bool:
    """Whether everything is what it was."""
    return before.keys() == now.keys() and all(_same(value, now[place]) for place, value in before.items())


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return one is other
    return type(one) is type(other) and one == other


def _is_known(thing: Any) -> bool:
    return (getattr(thing, "__module__", None) or "").split(".")[0] in _KNOWN


def _own_forward(kind: type) -> types.FunctionType:
    forward = kind.forward  # type: ignore[attr-defined]
    if not isinstance(forward, types.FunctionType):
        raise CannotReplay(f"{kind.__name__}.forward is no plain function")
    return forward


def _called(function: Any, seen: set[int]) -> Iterator[tuple[tuple, Any]]:
    """What a callable depends on: (where, value)."""
    if isinstance(function, functools.partial):
        for place, value in (*enumerate(function.args), *function.keywords.items()):
            yield from _value(("argument", id(function), place), value, seen)
        yield from _called(function.func, seen)
    elif isinstance(function, types.MethodType):
        raise CannotReplay(f"{function.__qualname__} is a method of an object")
    elif not _is_known(function) and not isinstance(function, (types.BuiltinFunctionType, type)):
        yield from _referred_by(function, seen)


def _referred_by(function: Any, seen: set[int], kind: type = object) -> Iterator[tuple[tuple, Any]]:
    """What a function's code refers to by global names, closures and defaults, farther functions included."""
    if not isinstance(function, types.FunctionType):
        raise CannotReplay(f"{function!r} is no plain function")
    if id(function) in seen:
        return
    seen.add(id(function))
    place = f"{function.__module__}.{function.__qualname__}"
    yield (place, "code"), function.__code__
    values = {name: function.__globals__[name] for name in _names(function.__code__) if name in function.__globals__}
    values |= dict(zip(function.__code__.co_freevars, map(_contents, function.__closure__ or ()), strict=True))
    values |= {f"default {n}": value for n, value in enumerate(function.__defaults__ or ())}
    values |= function.__kwdefaults__ or {}
    for name, value in values.items():
        yield from _value((place, name), value, seen)
    yield from _of_class(function, kind, seen)


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _names(code: types.CodeType) -> set[str]:
    """Names that code refers to, functions inside of it included."""
    return set(code.co_names).union(*(_names(one) for one in code.co_consts if isinstance(one, types.CodeType)))


def _of_class(function: types.FunctionType, kind: type, seen: set[int]) -> Iterator[tuple[tuple, Any]]:
    """Of a method, what others that its code names depend on, and numbers of its class, inherited ones included."""
    for owner in kind.__mro__:
        for name in _names(function.__code__) & vars(owner).keys() if not _is_known(owner) else ():
            value = vars(owner)[name]
            value = getattr(value, "__func__", getattr(value, "fget", value))  # static and class methods, properties
            if isinstance(value, types.FunctionType):
                yield from () if _is_known(value) else _referred_by(value, seen, kind)
            else:
                yield from _value((owner.__module__, owner.__qualname__, name), value, seen)


def _value(place: tuple, value: Any, seen: set[int]) -> Iterator[tuple[tuple, Any]]:
    if isinstance(value, types.ModuleType):
        if value.__name__.split(".")[0] not in (*_KNOWN, *_CONSTANT):
            raise CannotReplay(f"{place} refers to the module {value.__name__}")
    elif isinstance(value, (*_PLAIN, Tensor)):
        yield place, value
    elif isinstance(value, (tuple, frozenset)):
        for number, item in enumerate(value):
            yield from _value((*place, number), item, seen)
    elif isinstance(value, nn.Module):
        raise CannotReplay(f"{place} refers to a module that is not part of the model")
    elif isinstance(value, type):
        yield place, value
    elif callable(value):
        yield place, id(value)
        yield from _called(value, seen)
    else:
        raise CannotReplay(f"{place} refers to a {type(value).__name__}")
