"""Models as other libraries hand them over: compiled, wrapped, or with their logits or their loss inside an object."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn

from sfumato._checks import SfumatoError

_WRAPPERS = {
    "DataParallel": "take the wrapper off: give model.module",
    "DistributedDataParallel": "take the wrapper off: give model.module",
    "FullyShardedDataParallel": "give the model before it was sharded",
    "FSDPModule": "give the model before it was sharded",
    "GradSampleModule": "take Opacus's wrapper off: give model.to_standard_module()",
}
"""By the names of their classes, what each wrapper's remedy is."""
_LIBRARIES = ("transformers", "peft")
"""Whose models give objects."""


def unwrapped(model: nn.Module) -> nn.Module:
    """What `torch.compile` has wrapped: the engine runs the model's own code, with its own names of parameters.

    Errors: `SfumatoError` for a module inside that was compiled by itself, for one that was compiled in place, and for
    the wrappers that take the gradients of a batch for themselves: `DataParallel` and its like, and Opacus's.
    """
    model = getattr(model, "_orig_mod", model)
    for name, module in model.named_modules():
        place = f"module {name!r} of the model" if name else "the model"
        if hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None:
            raise SfumatoError(
                f"module {name!r} of the model was compiled, and the engine runs the model's own code",
                "give the model before torch.compile, or compile the whole of it: model = torch.compile(model)",
            )
        for kind in type(module).__mro__:
            if kind.__name__ in _WRAPPERS and kind.__module__.partition(".")[0] in ("torch", "opacus"):
                raise SfumatoError(
                    f"{place} is wrapped in {kind.__name__}, which handles the gradients of a batch in its own way",
                    _WRAPPERS[kind.__name__],
                )
    return model


class OfLogits(nn.Module):
    """A loss of the `logits` of what a model gives."""

    def __init__(self, loss: Callable[[Any, Any], Tensor]):
        super().__init__()
        self.loss = loss

    def forward(self, outputs: Any, targets: Any) -> Tensor:
        """The loss of the outputs' logits; of plain outputs their own."""
        return self.loss(outputs if isinstance(outputs, Tensor) else outputs.logits, targets)


def of_logits(model: nn.Module, loss: Any) -> Any:
    """For a model of transformers, torch's own losses take the logits out of what it gives; others get all of it."""
    return OfLogits(loss) if _gives_objects(model) and _is_torchs(loss) else loss


def loss_of_model(outputs: Any, targets: Any) -> Tensor:
    """The loss that a model computes itself, from labels among its inputs, as those of transformers do."""
    value = getattr(outputs, "loss", None)
    if not isinstance(value, Tensor):
        raise SfumatoError(
            f"the model's inputs have labels, and its output, of type {type(outputs).__name__}, has no loss",
            "give a `loss` of outputs and targets, or a model that computes its own from `labels`",
        )
    return value


def _gives_objects(model: nn.Module) -> bool:
    """Whether a model of these libraries is in it: one of peft wraps one of transformers, and so may an owner's."""
    kinds = {kind for module in model.modules() for kind in type(module).__mro__}
    return any(kind.__module__.partition(".")[0] in _LIBRARIES for kind in kinds)


def _is_torchs(loss: Any) -> bool:
    inner = loss.func if isinstance(loss, partial) else loss
    module = type(inner).__module__ if isinstance(inner, nn.Module) else getattr(inner, "__module__", "") or ""
    return module.startswith("torch")
