"""Features of autograd that the clipped sum cannot honour: backward hooks and compiled code are refused by name.

A hook on a module or a parameter waits for the gradient of a whole batch, which is never computed. A hook that the
forward pass registers on an activation works: it is called as if each example were alone. Forward hooks run as usual.
TorchScript optimises by what it has seen in earlier calls, and was found to drop gradients under vmap, and afterwards
those of ordinary calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as library

from sfumato._checks import SfumatoError
from sfumato.gradients.methods.batch_axis import unwrap_batched
from sfumato.gradients.walk import named_modules, named_parameters

_OF_MODULES = {
    "_backward_hooks": "a backward hook (register_full_backward_hook or register_backward_hook)",
    "_backward_pre_hooks": "a backward pre-hook (register_full_backward_pre_hook)",
}
_OF_PARAMETERS = {
    "_backward_hooks": "a gradient hook (register_hook)",
    "_post_accumulate_grad_hooks": "a gradient hook (register_post_accumulate_grad_hook)",
}
_REMEDY = (
    "remove it with the handle that registering it returned (handle.remove()), and do its work on "
    "ClippedSum.gradients, in the loss, or in the forward pass with Tensor.register_hook on an activation"
)
_SCRIPTED = (torch.jit.ScriptModule, torch.jit.ScriptFunction)


def _modules(model: nn.Module, loss: Any) -> list[tuple[str, str, nn.Module]]:
    """All modules as (owner, name, module), where the owner is the model or the loss."""
    of_loss = named_modules(loss) if isinstance(loss, nn.Module) else ()
    in_loss = [("loss module", f"loss.{name}".rstrip("."), module) for name, module in of_loss]
    return [*(("module", name, module) for name, module in named_modules(model)), *in_loss]


def _place(of: str, name: str, module: nn.Module) -> str:
    """A module's name in an error message."""
    return f"{of} {name!r} ({type(module).__name__})" if name else f"the model ({type(module).__name__})"


def refuse_backward_hooks(model: nn.Module, loss: Any) -> None:
    """Refuses hooks that wait for the gradient of a batch, naming their module or parameter."""
    if library._global_backward_hooks or library._global_backward_pre_hooks:
        _refuse_hook("torch.nn.modules.module", "a backward hook of all modules (register_module_full_backward_hook)")
    for of, name, module in _modules(model, loss):
        for key, kind in _OF_MODULES.items():
            if vars(module).get(key):
                _refuse_hook(_place(of, name, module), kind)
    for name, parameter in named_parameters(model).items():
        for key, kind in _OF_PARAMETERS.items():
            if parameter.requires_grad and getattr(parameter, key, None):
                _refuse_hook(f"parameter {name!r}", kind)


def _refuse_hook(place: str, kind: str) -> None:
    raise SfumatoError(f"{place} has {kind}, which the clipped sum would not call", _REMEDY)


def refuse_scripted(model: nn.Module, loss: Any) -> None:
    """Refuses code compiled by TorchScript: modules, and functions that they hold or that their forward names.

    A function that is called from deeper inside is not found here; `ClippedGradient.self_check` notices its effects.
    """
    if isinstance(loss, _SCRIPTED):
        _refuse_scripted("loss")
    for of, name, module in _modules(model, loss):
        place = _place(of, name, module)
        if isinstance(module, _SCRIPTED):
            _refuse_scripted(place)
        forward = getattr(type(module), "forward", None)
        names, known = getattr(forward, "__code__", None), getattr(forward, "__globals__", {})
        called = {name: known.get(name) for name in names.co_names} if names is not None else {}
        for key, value in {**called, **vars(module)}.items():
            if isinstance(value, torch.jit.ScriptFunction):
                _refuse_scripted(f"{place} calls {key!r}, which")


def _refuse_scripted(what: str) -> None:
    raise SfumatoError(
        f"{what} is compiled by TorchScript (torch.jit.script or torch.jit.trace), which drops gradients when examples "
        "are vectorised",
        "give the Python module or function from which it was compiled",
    )


def tap_hook(mode, self, hook):
    """The handler of ``Tensor.register_hook`` in the forward pass."""
    batched = unwrap_batched(self)
    if batched is None:
        _refuse_on_weight(mode, self, "register_hook")
        return NotImplemented
    values, axis = batched

    def of_one(gradient: Tensor) -> Tensor:
        changed = hook(gradient)
        return gradient if changed is None else changed

    return values.register_hook(torch.vmap(of_one, axis, axis, randomness="different"))


def tap_post_accumulate_hook(mode, self, hook):
    """The handler of ``Tensor.register_post_accumulate_grad_hook`` in the forward pass."""
    _refuse_on_weight(mode, self, "register_post_accumulate_grad_hook")
    return NotImplemented


def _refuse_on_weight(mode, tensor: Tensor, kind: str) -> None:
    names = mode.tape.operands.operand_of(tensor).names
    if names:
        raise SfumatoError(
            f"the forward pass registers a gradient hook ({kind}) on a weight made of {', '.join(names)}, which the "
            "clipped sum would not call",
            "do its work on ClippedSum.gradients, or register it on an activation",
        )


HANDLERS: dict[Callable, Callable] = {
    Tensor.register_hook: tap_hook,
    Tensor.register_post_accumulate_grad_hook: tap_post_accumulate_hook,
}
