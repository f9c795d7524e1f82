"""Models as other libraries hand them over: compiled, or with their logits inside an object."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn

from sfumato._checks import SfumatoError


def without_compilation(model: nn.Module) -> nn.Module:
    """What `torch.compile` has wrapped: the engine runs the model's own code, with its own names of parameters.

    Errors: `SfumatoError` for a module inside that was compiled by itself, and for one that was compiled in place.
    """
    model = getattr(model, "_orig_mod", model)
    for name, module in model.named_modules():
        if hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None:
            raise SfumatoError(
                f"module {name!r} of the model was compiled, and the engine runs the model's own code",
                "give the model before torch.compile, or compile the whole of it: model = torch.compile(model)",
            )
    return model


class OfLogits:
    """A loss of the `logits` of what a model gives."""

    def __init__(self, loss: Callable[[Any, Any], Tensor]):
        self.loss = loss

    def __call__(self, outputs: Any, targets: Any) -> Tensor:
        """The loss of the outputs' logits; of plain outputs their own."""
        return self.loss(outputs if isinstance(outputs, Tensor) else outputs.logits, targets)


def of_logits(model: nn.Module, loss: Any) -> Any:
    """For a model of transformers, torch's own losses take the logits out of what it gives; others get all of it."""
    return OfLogits(loss) if _is_of_transformers(model) and _is_torchs(loss) else loss


def _is_of_transformers(model: nn.Module) -> bool:
    return any(kind.__module__.startswith("transformers.") for kind in type(model).__mro__)


def _is_torchs(loss: Any) -> bool:
    inner = loss.func if isinstance(loss, partial) else loss
    module = type(inner).__module__ if isinstance(inner, nn.Module) else getattr(inner, "__module__", "") or ""
    return module.startswith("torch")
