"""Trial runs of a model: temporary evaluation mode, a check of its output shape, and models that return objects."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from sfumato._checks import SfumatoError


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Sets the module to evaluation mode within the context, and restores the mode of every submodule."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def check_shapes(
    name: str, model: nn.Module, *, classes: int, shape: tuple[int, ...] | Tensor, each_word: bool = False
) -> nn.Module:
    """Refuses a model that fails on an input (1, ...) of zeros, or whose output is not logits (1, classes).

    Args:
        name: the user's name for the model, for messages.
        model: any module; run in evaluation mode, and its mode is restored.
        classes: number of classes.
        shape: the shape of an input, (C, H, W) for an image or (D,) for a feature vector; or an input, such as the
            token numbers (1, T) of a text.
        each_word: whether the output has logits for each of the T words: (1, T, classes).

    Returns:
        The model; if its output is an object with logits, as in transformers, a copy that returns the logits
        (`returning_logits`).

    Raises:
        SfumatoError: the forward pass fails, or its output is not logits.
    """
    if isinstance(shape, Tensor):
        inputs, images = shape, f"texts of {shape.shape[1]} words"
    else:
        inputs = torch.zeros(1, *shape)
        images = f"images of {' x '.join(map(str, shape))}" if len(shape) == 3 else f"vectors of {shape[0]} numbers"
    try:
        with evaluation_mode(model), torch.no_grad():
            logits = model(inputs)
    except Exception as error:
        raise SfumatoError(
            f"model {name!r} fails on {images}: {' '.join(str(error).split())}", "choose another model or size"
        ) from error
    if has_logits(logits):
        model, logits = returning_logits(model), logits.logits
    wanted = (1, *inputs.shape[1:], classes) if each_word else (1, classes)
    if not isinstance(logits, Tensor) or logits.shape != wanted:
        actual = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise SfumatoError(
            f"model {name!r} must map one of the {images} to logits of shape {wanted}, got {actual}",
            "make its last layer output one number per class",
        )
    return model


class _Logits:
    """Mixin that precedes a model's class, and extracts the logits from its output."""

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        outputs = super().forward(*inputs, **keywords)  # type: ignore[misc] - the model's forward
        return outputs if isinstance(outputs, Tensor) else outputs.logits


def has_logits(outputs: Any) -> bool:
    """Whether a model's output is an object with logits.

    >>> from types import SimpleNamespace
    >>> import torch
    >>> has_logits(SimpleNamespace(loss=None, logits=torch.zeros(1, 3))), has_logits(torch.zeros(1, 3))
    (True, False)
    """
    return not isinstance(outputs, Tensor) and isinstance(getattr(outputs, "logits", None), Tensor)


def returning_logits(model: nn.Module) -> nn.Module:
    """A shallow copy of the model that returns logits. It shares the submodules and parameters of the model.

    It is not a wrapper, so weights keep their names. It uses no hook, so the model is unchanged and the copy's steps
    can be replayed.
    """
    kind, twin = type(model), copy.copy(model)
    attributes = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    twin.__class__ = type(kind.__name__, (_Logits, kind), attributes)
    return twin
