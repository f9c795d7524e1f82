"""What a recorded call depends on besides its tensors, so that it is known when a recording no longer holds.

A recording leaves out the Python that led to it. So it may only be made where that Python can be seen to depend on
nothing but the call's tensors and on what is compared here before each use: what the model's modules and the loss hold,
and the numbers and texts that their code refers to. PyTorch, timm and their like are trusted; other code is read. What
cannot be judged (a global list, an unknown library, a hook) is never recorded.
"""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sfumato.gradients.checks.isolation import Opaque, held
from sfumato.gradients.recordable import CannotReplay

# Libraries whose layers are functions of their inputs, of what they hold, and of torch's random numbers.
_KNOWN = ("torch", "torchvision", "timm", "transformers", "sfumato", "einops")
# Modules of Python that code may refer to: nothing in them changes, or is made by chance.
_CONSTANT = (
    "builtins",
    "_operator",
    "_functools",
    "math",
    "functools",
    "itertools",
    "operator",
    "typing",
    "collections",
    "abc",
    "enum",
    "dataclasses",
)
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size, torch.memory_format)
# Names of Python's own by which code gets at anything.
_REACHING = frozenset(("globals", "eval", "exec", "__import__", "open", "input"))
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
    for number, module in enumerate(modules):
        kind = type(module)
        found["module", number] = (kind, kind.forward, tuple(module._modules.items()))  # an order is kept, and an alias
    for kind in dict.fromkeys(map(type, modules)):
        found.update(_of_class(kind, set()))
        if _is_known(kind) and not _is_known(kind.forward):
            found.update(_called(kind.forward, set()))
    judged: set[type] = set()
    for place, value in held(model, loss).items():
        found["held", *place] = value
        if not isinstance(value, Tensor):
            found.update(_of_held(value, judged))
    if not isinstance(loss, nn.Module):
        found.update(_called(loss, set()))
    return found | {("form", *place): _form(value) for place, value in found.items() if isinstance(value, Tensor)}


def _form(tensor: Tensor) -> tuple:
    """What decides which operations are done with a tensor; `Module.to` changes it and not the tensor's identity."""
    strides = tensor.stride() if tensor.layout == torch.strided else None
    return tensor.shape, strides, tensor.dtype, tensor.device, tensor.layout, tensor.requires_grad


def _of_held(value: Any, judged: set[type]) -> Iterator[tuple[tuple, Any]]:
    """What a thing that a module holds, as `held` tells of it, depends on besides."""
    if isinstance(value, tuple) and isinstance(value[0], type):  # its type, and its contents
        if value[0] is Opaque:
            raise CannotReplay(f"a module holds a {value[1].__name__}, which can't be looked into")
        for kind in value:
            if isinstance(kind, type) and kind not in judged and not issubclass(kind, np.generic):
                judged.add(kind)
                yield from _of_class(kind, set())
    elif callable(value):
        yield from _called(value, set())


def still(before: Standing, now: Standing) -> bool:
    """Whether everything is what it was."""
    return before.keys() == now.keys() and all(_same(value, now[place]) for place, value in before.items())


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return one is other
    return type(one) is type(other) and one == other


def _is_known(thing: Any) -> bool:
    return (getattr(thing, "__module__", None) or "").split(".")[0] in _KNOWN


def _called(function: Any, seen: set[int]) -> Iterator[tuple[tuple, Any]]:
    """What a callable depends on: (where, value)."""
    if isinstance(function, functools.partial):
        for place, value in (*enumerate(function.args), *function.keywords.items()):
            yield from _value(("argument", id(function), place), value, seen)
        yield from _called(function.func, seen)
    elif isinstance(function, types.MethodType):
        raise CannotReplay(f"{function.__qualname__} is a method of an object")
    elif isinstance(function, types.BuiltinFunctionType):
        owner = function.__self__
        place = owner.__name__ if isinstance(owner, types.ModuleType) else _class_of(owner).__module__
        if place.split(".")[0] not in (*_KNOWN, *_CONSTANT):
            raise CannotReplay(f"{function.__name__} is a function of {place}")
    elif isinstance(function, type):
        yield from _of_class(function, seen)
    elif not _is_known(function):
        yield from _referred_by(function, seen)


def _class_of(thing: Any) -> type:
    return thing if isinstance(thing, type) else type(thing)


def _referred_by(function: Any, seen: set[int]) -> Iterator[tuple[tuple, Any]]:
    """What a function's code refers to by global names, closures and defaults, farther functions included."""
    if not isinstance(function, types.FunctionType):
        raise CannotReplay(f"{function!r} is no plain function")
    if id(function) in seen:
        return
    seen.add(id(function))
    place = f"{function.__module__}.{function.__qualname__}", id(function)
    yield (place, "code"), function.__code__
    _refuse_reaching(function)
    values = {name: function.__globals__[name] for name in _names(function.__code__) if name in function.__globals__}
    values |= dict(zip(function.__code__.co_freevars, map(_contents, function.__closure__ or ()), strict=True))
    values |= {f"default {n}": value for n, value in enumerate(function.__defaults__ or ())}
    values |= function.__kwdefaults__ or {}
    for name, value in values.items():
        yield from _value((place, name), value, seen)


def _refuse_reaching(function: types.FunctionType) -> None:
    """Refuses code that gets at what it does not name."""
    reaching = (_names(function.__code__) & _REACHING) - function.__globals__.keys()
    if reaching:
        raise CannotReplay(f"{function.__qualname__} calls {min(reaching)}")
    for name in _imports(function.__code__):
        if name.split(".")[0] not in (*_KNOWN, *_CONSTANT):
            raise CannotReplay(f"{function.__qualname__} refers to the module {name}")


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


@functools.lru_cache(maxsize=1024)
def _names(code: types.CodeType) -> frozenset[str]:
    """Names that code refers to, functions inside of it included."""
    return frozenset(code.co_names).union(*map(_names, _inside(code)))


@functools.lru_cache(maxsize=1024)
def _imports(code: types.CodeType) -> frozenset[str]:
    """Modules that code imports when it is run, likewise."""
    own = (one.argval for one in dis.get_instructions(code) if one.opname == "IMPORT_NAME")
    return frozenset(own).union(*map(_imports, _inside(code)))


def _inside(code: types.CodeType) -> list[types.CodeType]:
    return [one for one in code.co_consts if isinstance(one, types.CodeType)]


def _of_class(kind: type, seen: set[int]) -> Iterator[tuple[tuple, Any]]:
    """What a class's functions depend on, and what it holds, inherited ones included; not how its objects are made.

    All of them: which ones are called can't be seen where another module calls them, or Python does (`__getattr__`).
    """
    for owner in kind.__mro__:
        if id(owner) in seen or _is_known(owner) or owner.__module__ in _CONSTANT:
            continue
        seen.add(id(owner))
        for name, value in vars(owner).items():
            value = getattr(value, "__func__", getattr(value, "fget", value))  # static and class methods, properties
            if isinstance(value, types.FunctionType):
                if name != "__init__" and not _is_known(value):
                    yield from _referred_by(value, seen)
            elif not name.startswith("__") and not isinstance(
                value, (types.GetSetDescriptorType, types.MemberDescriptorType)
            ):
                yield from _value((owner.__module__, owner.__qualname__, id(owner), name), value, seen)


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
        yield from _of_class(value, seen)
    elif callable(value):
        yield place, id(value)
        yield from _called(value, seen)
    else:
        raise CannotReplay(f"{place} refers to a {type(value).__name__}")
