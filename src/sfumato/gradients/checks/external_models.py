"""Models from other libraries: compiled, wrapped, or with logits or loss inside an output object."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sfumato._checks import SfumatoError
from sfumato.gradients.walk import named_tensors

_WRAPPERS = {
    "DataParallel": "remove the wrapper: give model.module",
    "DistributedDataParallel": "remove the wrapper: give model.module",
    "FullyShardedDataParallel": "give the model before it was sharded",
    "FSDPModule": "give the model before it was sharded",
    "GradSampleModule": "remove Opacus's wrapper: give model.to_standard_module()",
}
"""Remedies, by the class name of the wrapper."""
_LIBRARIES = ("transformers", "peft")
"""Libraries whose models return objects."""


def unwrap(model: nn.Module) -> nn.Module:
    """Unwraps a model compiled with `torch.compile`: the engine runs the model's own code, with its parameter names.

    Errors: `SfumatoError` for an inner module that was compiled separately, for a model compiled in place, and for
    wrappers that process the gradients of a batch themselves: `DataParallel` and similar ones, and Opacus's.
    """
    model = getattr(model, "_orig_mod", model)
    for name, module in model.named_modules():
        place = f"module {name!r} of the model" if name else "the model"
        if hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None:
            raise SfumatoError(
                f"module {name!r} of the model was compiled, but the engine runs the model's own code",
                "give the model before torch.compile, or compile the whole model: model = torch.compile(model)",
            )
        for kind in type(module).__mro__:
            if kind.__name__ in _WRAPPERS and kind.__module__.partition(".")[0] in ("torch", "opacus"):
                raise SfumatoError(
                    f"{place} is wrapped in {kind.__name__}, which handles the gradients of a batch in its own way",
                    _WRAPPERS[kind.__name__],
                )
    return model


def storable(model: nn.Module) -> nn.Module:
    """The model. Refuses one whose weights no file of safetensors can hold: its state must be dense tensors."""
    for name, value in {**model.state_dict(), **dict(named_tensors(model))}.items():
        if (kind := undense(value)) is not None:
            raise SfumatoError(
                f"{name} of the model is no dense tensor ({kind}), as which its weights are stored",
                "hold dense tensors alone in parameters, buffers and get_extra_state, and make others of them in the "
                "forward pass",
            )
    return model


def undense(value: Any) -> str | None:
    """What the value is if it is no dense tensor with numbers in it; else None."""
    if not isinstance(value, Tensor):
        return type(value).__name__
    odd = {"that is nested": value.is_nested, "that is quantised": value.is_quantized, "on meta": value.is_meta}
    odd |= {f"of layout {value.layout}": value.layout != torch.strided}
    return next((f"a tensor {kind}" for kind, is_so in odd.items() if is_so), None)


class LogitsLoss(nn.Module):
    """A loss applied to the `logits` of a model's output object."""

    def __init__(self, loss: Callable[[Any, Any], Tensor]):
        super().__init__()
        self.loss = loss

    def forward(self, outputs: Any, targets: Any) -> Tensor:
        """The loss of the outputs' logits, or of the outputs themselves if they are a tensor."""
        return self.loss(outputs if isinstance(outputs, Tensor) else outputs.logits, targets)


def loss_on_logits(model: nn.Module, loss: Any) -> Any:
    """Makes torch's own losses read the logits of a model that returns objects; other losses get the whole object."""
    return LogitsLoss(loss) if _returns_objects(model) and _from_torch(loss) else loss


def loss_of_model(outputs: Any, targets: Any) -> Tensor:
    """The loss that a model computes itself from labels among its inputs, as models of transformers do."""
    value = getattr(outputs, "loss", None)
    if not isinstance(value, Tensor):
        raise SfumatoError(
            f"the model's inputs have labels, but its output, of type {type(outputs).__name__}, has no loss",
            "give a `loss` of outputs and targets, or a model that computes its loss from `labels`",
        )
    return value


def _returns_objects(model: nn.Module) -> bool:
    """Whether a model of these libraries is inside: peft wraps models of transformers, and users may wrap both."""
    kinds = {kind for module in model.modules() for kind in type(module).__mro__}
    return any(kind.__module__.partition(".")[0] in _LIBRARIES for kind in kinds)


def _from_torch(loss: Any) -> bool:
    inner = loss.func if isinstance(loss, partial) else loss
    module = type(inner).__module__ if isinstance(inner, nn.Module) else getattr(inner, "__module__", "") or ""
    return module.startswith("torch")
