"""One forward pass on blank images, so that a model that doesn't fit is refused before anything is spent."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sfumato._checks import SfumatoError


def check_shapes(name: str, model: nn.Module, *, classes: int, channels: int, size: tuple[int, int]) -> None:
    """Refuse a model that fails on images (1, C, H, W) of zeros, or whose output is not logits (1, classes).

    Args:
        name: what the user calls the model, for the message.
        model: any module; run in evaluation mode and left in the mode it had.
        classes: number of classes.
        channels: colour channels C.
        size: height and width (H, W) in pixels.

    Raises:
        SfumatoError: the pass fails, or gives something else than logits.
    """
    modes = [(module, module.training) for module in model.modules()]
    images = f"images of {channels} x {size[0]} x {size[1]}"
    try:
        with torch.no_grad():
            logits = model.eval()(torch.zeros(1, channels, *size))
    except Exception as error:
        raise SfumatoError(
            f"model {name!r} fails on {images}: {' '.join(str(error).split())}", "choose another model or image size"
        ) from error
    finally:
        for module, training in modes:
            module.training = training
    if not isinstance(logits, Tensor) or logits.shape != (1, classes):
        found = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise SfumatoError(
            f"model {name!r} must turn one of the {images} into logits of shape (1, {classes}), got {found}",
            "let its last layer give one number per class",
        )
