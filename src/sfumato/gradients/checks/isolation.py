"""Isolation: refuses models in which one example could reach another one's gradient.

Within a call this is impossible, since every example has its own run of the model. Two paths remain and are closed
here: layers whose purpose is to mix a batch or to rewrite weights by what they read, and modules that store something
of an example (in an attribute or a buffer) and expose it to the next example.
"""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from sfumato._checks import SfumatoError
from sfumato.gradients.walk import named_modules

# Torch's own bookkeeping in a module: parameters and sub-modules are visited by name, and hooks hold functions.
_BOOKKEEPING = frozenset(vars(nn.Module()).keys() - {"_buffers", "training"})
_DEEPEST = 4
_NOTHING_INSIDE = (
    *(type, bytes, type(None), np.generic),
    *(types.ModuleType, types.FunctionType, types.MethodType, types.BuiltinFunctionType),
)

# Most of what modules hold; irrelevant if only tensors are compared.
_SKIPPED = frozenset({bool, int, float, str, type(None), types.FunctionType, types.BuiltinFunctionType})


def refuse_mixing_layers(model: nn.Module) -> None:
    """Refuses, by module name, layers that couple examples or rewrite weights at private positions."""
    for name, module in named_modules(model):
        if not isinstance(module, (_BatchNorm, _InstanceNorm, nn.Embedding, nn.EmbeddingBag)):
            continue
        place = f"module {name!r} ({type(module).__name__})" if name else f"the model ({type(module).__name__})"
        if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):
            kind = "synchronised batch norm" if isinstance(module, nn.SyncBatchNorm) else "batch norm"
            raise SfumatoError(
                f"{place} is {kind} that normalises by the private batch, so every example would affect the gradients "
                "of all others",
                "give `normalisation=group` (with public examples also public-batch); or in a model of your own, call "
                "sfumato.models.replace_norms(model, 'group'), or .eval() on the module to keep its stored statistics",
            )
        if isinstance(module, _InstanceNorm) and module.track_running_stats and module.training:
            raise SfumatoError(
                f"{place} keeps running statistics of private examples",
                "build it with track_running_stats=False, or freeze it with .eval() on that module",
            )
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.max_norm is not None:
            raise SfumatoError(
                f"{place} has max_norm={module.max_norm}, which rewrites its weights at the private indices that it "
                "reads",
                "build it without max_norm",
            )


def refuse_trainable_loss(loss: Any) -> None:
    """Refuses a loss that is a module with trainable parameters, since they would never be trained."""
    if isinstance(loss, nn.Module) and any(p.requires_grad for p in loss.parameters()):
        name = next(name for name, p in loss.named_parameters() if p.requires_grad)
        raise SfumatoError(
            f"the loss has the trainable parameter {name!r}, which would get no gradient",
            "move it into the model, or freeze it with requires_grad_(False)",
        )


class _ModuleState:
    """A record of the contents of modules, by reference and version, that can be compared and restored later."""

    def __init__(self, modules: list[tuple[str, nn.Module]], tensors: Iterable[tuple[str, Tensor]], *, strict: bool):
        self._modules, self._tensors, self._strict = modules, list(tensors), strict
        self._registered = {id(module) for _, module in modules}
        self._saved: list[tuple[Any, Any]] = []
        # Recurrent modules hold their parameters a second time, in a list that is stale after a run with substitutes.
        self._aliases = [(m, list(m._flat_weights)) for _, m in self._modules if isinstance(m, nn.RNNBase)]
        self._before = dict(self._contents(save=True))

    def _contents(self, *, save: bool) -> Iterator[tuple[tuple[str, ...], tuple[Any, Any]]]:
        for name, module in self._modules:
            attributes = vars(module)
            if save:
                self._saved.append((attributes, dict(attributes)))
            for key, value in _own_attributes(module):
                if self._strict or type(value) not in _SKIPPED:
                    yield from self._entries((name, key), value, save, 0)
            for key, parameter in module._parameters.items():
                if parameter is not None:
                    yield (name, key), _identity(parameter)
        for key, tensor in self._tensors:
            yield ("", key), _identity(tensor)

    def _entries(self, path: tuple[str, ...], value: Any, save: bool, depth: int):
        if isinstance(value, Tensor):
            yield path, (value, (_identity(value)[1], _contents_of(value))) if self._strict else _identity(value)
        elif isinstance(value, (bool, int, float, complex, str)):
            if self._strict:
                yield path, (type(value), value)
        elif isinstance(value, np.ndarray):
            yield path, (value, (value.dtype.str, value.shape, value.tobytes()))
        elif depth == _DEEPEST:
            return
        elif isinstance(value, (dict, list, set, deque, tuple)):
            if save and not isinstance(value, tuple):
                self._saved.append((value, value.copy()))
            for key, item in list(value.items() if isinstance(value, dict) else enumerate(value)):
                yield from self._entries((*path, str(key)), item, save, depth + 1)
        elif isinstance(value, nn.Module):
            if id(value) not in self._registered:  # a module in a plain list, which torch does not register
                for key, item in (*_own_attributes(value), *value._parameters.items(), *value._modules.items()):
                    yield from self._entries((*path, key), item, save, depth + 1)
        elif _is_plain_object(value):
            attributes = vars(value) if hasattr(value, "__dict__") else {}
            if save and attributes:
                self._saved.append((attributes, dict(attributes)))
            for key, item in (*attributes.items(), *_slots_of(value)):
                yield from self._entries((*path, key), item, save, depth + 1)

    def change(self) -> tuple[str, ...] | None:
        """The first place that holds a new or changed value, or None."""
        after = dict(self._contents(save=False))
        for path, (what, version) in after.items():
            before = self._before.get(path)
            if before is None or (before[1] is not version and before[1] != version):
                return path
            if isinstance(what, Tensor) and before[0] is not what:
                return path
        return None

    def restore_aliases(self) -> None:
        """Makes recurrent modules refer to their own parameters again."""
        for module, parameters in self._aliases:
            vars(module)["_flat_weights"] = parameters

    def restore(self) -> None:
        """Restores the contents of containers and attributes."""
        for container, contents in self._saved:
            container.clear()
            container.extend(contents) if isinstance(container, (list, deque)) else container.update(contents)


def _identity(tensor: Tensor) -> tuple[Tensor, int]:
    return tensor, -1 if tensor.is_inference() else tensor._version


def _contents_of(tensor: Tensor) -> bytes | None:
    """A tensor's contents, since a write through ``.data`` changes no version; None if they cannot be read."""
    try:
        return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    except (RuntimeError, TypeError):
        return None


def _own_attributes(module: nn.Module) -> list[tuple[str, Any]]:
    """A module's attributes and buffers, without parameters, sub-modules and torch's own bookkeeping."""
    hidden = _BOOKKEEPING | {"_flat_weights", "_flat_weight_refs"} if isinstance(module, nn.RNNBase) else _BOOKKEEPING
    return [(key, value) for key, value in vars(module).items() if key not in hidden]


def _is_plain_object(value: Any) -> bool:
    """Whether a value may have attributes of its own; callable helper objects may, functions do not."""
    if isinstance(value, _NOTHING_INSIDE) or type(value).__module__.startswith("torch"):
        return False
    return hasattr(value, "__dict__") or hasattr(type(value), "__slots__")


def _slots_of(value: Any) -> list[tuple[str, Any]]:
    names = {name for kind in type(value).__mro__ for name in _listed(getattr(kind, "__slots__", ()))}
    return [
        (name, getattr(value, name)) for name in sorted(names - {"__dict__", "__weakref__"}) if hasattr(value, name)
    ]


def _listed(slots: str | Iterable[str]) -> Iterable[str]:
    return (slots,) if isinstance(slots, str) else slots


def _modules(model: nn.Module, loss: Any) -> list[tuple[str, nn.Module]]:
    of_loss = named_modules(loss) if isinstance(loss, nn.Module) else ()
    return [*named_modules(model), *((f"loss.{name}".rstrip("."), module) for name, module in of_loss)]


@contextmanager
def unchanged_state(model: nn.Module, loss: Any, tensors: Iterable[tuple[str, Tensor]] = (), *, strict: bool = False):
    """A context around a run that refuses, by module and attribute, a model or loss whose contents have changed.

    Args:
        tensors: further named tensors that must not be written to, such as copies that stand in for buffers.
        strict: also compare numbers, strings and the contents of tensors. Needed if the model sees plain values; under
            vmap it cannot turn an example's value into a number unless a condition is answered (`conditions`).
    """
    state = _ModuleState(_modules(model, loss), tensors, strict=strict)
    try:
        yield
    except Exception as error:
        _refuse_change(state, error)
        raise
    _refuse_change(state, None)


def _refuse_change(state: _ModuleState, failure: Exception | None) -> None:
    state.restore_aliases()
    path = state.change()
    if path is None:
        return
    state.restore()
    place = ".".join(part for part in path if part != "_buffers").lstrip(".")
    raise SfumatoError(
        f"the forward pass leaves a new or changed value in {place!r}, which the next example would see",
        "compute it in every forward pass, or freeze the module that stores it with .eval(); replace the hooks of "
        "torch.nn.utils.weight_norm and spectral_norm by those of torch.nn.utils.parametrizations",
    ) from failure
