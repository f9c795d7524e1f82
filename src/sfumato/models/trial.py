"""A model in evaluation mode for a while, and one forward pass on blank images that refuses what doesn't fit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from sfumato._checks import SfumatoError
from sfumato.models.logits import giving_logits, holds_logits


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
