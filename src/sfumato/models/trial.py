"""A model tried: in evaluation mode for a while, on blank images, and giving its logits where they lie in an object."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from sfumato._checks import SfumatoError


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """The module in evaluation mode; all of its parts have their own modes again afterwards."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def check_shapes(name: str, model: nn.Module, *, classes: int, shape: tuple[int, ...] | Tensor) -> nn.Module:
    """Refuse a model that fails on an input (1, ...) of zeros, or whose output is not logits (1, classes).

    Returns the model; or, where its outputs are objects with logits, as those of transformers are, its twin that gives
    these (`giving_logits`).

    Args:
        name: what the user calls the model, for the message.
        model: any module; run in evaluation mode and left in the mode it had.
        classes: number of classes.
        shape: of an input: (C, H, W) of an image, (D,) of a feature vector; or an input itself, such as a text's word
            numbers (1, T).

    Raises:
        SfumatoError: the pass fails, or gives something else than logits.
    """
    if isinstance(shape, Tensor):
        inputs, images = shape, f"texts of {shape.shape[1]} words"
    else:
        inputs = torch.zeros(1, *shape)
        images = f"images of {' x '.join(map(str, shape))}" if len(shape) == 3 else f"vectors of {shape[0]} numbers"
    try:
        with evaluating(model), torch.no_grad():
            logits = model(inputs)
    except Exception as error:
        raise SfumatoError(
            f"model {name!r} fails on {images}: {' '.join(str(error).split())}", "choose another model or size"
        ) from error
    if holds_logits(logits):
        model, logits = giving_logits(model), logits.logits
    if not isinstance(logits, Tensor) or logits.shape != (1, classes):
        found = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise SfumatoError(
            f"model {name!r} must turn one of the {images} into logits of shape (1, {classes}), got {found}",
            "let its last layer give one number per class",
        )
    return model


class _Logits:
    """Stands in front of a model's class, and takes the logits out of what its forward pass gives."""

    def forward(self, *inputs: Any, **named: Any) -> Any:
        outputs = super().forward(*inputs, **named)  # type: ignore[misc] - the model's own
        return outputs if isinstance(outputs, Tensor) else outputs.logits


def holds_logits(outputs: Any) -> bool:
    """Whether what a model gives is an object with logits.

    >>> from types import SimpleNamespace
    >>> import torch
    >>> holds_logits(SimpleNamespace(loss=None, logits=torch.zeros(1, 3))), holds_logits(torch.zeros(1, 3))
    (True, False)
    """
    return not isinstance(outputs, Tensor) and isinstance(getattr(outputs, "logits", None), Tensor)


def giving_logits(model: nn.Module) -> nn.Module:
    """A twin of the model that gives the logits themselves: it has the same parts, parameters and names.

    No wrapper, so weights keep their names; no hook, so the model stays as it is, and the twin's steps can be replayed.
    """
    kind, twin = type(model), copy.copy(model)
    named = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    twin.__class__ = type(kind.__name__, (_Logits, kind), named)
    return twin
