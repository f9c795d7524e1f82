"""Models by name."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import MappingProxyType

from torch import Tensor, nn

from sfumato._checks import SfumatoError, positive_integer
from sfumato.models import custom, zoo
from sfumato.models.cnn import SmallCNN
from sfumato.models.lenet import LeNet5
from sfumato.models.linear import Linear
from sfumato.models.pretrained import load
from sfumato.models.scattering import Scattering
from sfumato.models.trial import check_shapes
from sfumato.models.wide_resnet import WideResNet

_FIXED = MappingProxyType({"scattering": Scattering, "lenet5": LeNet5, "cnn": SmallCNN, "linear": Linear})
_WIDE_RESNET = re.compile(r"wrn-(\d+)-(\d+)")

NAMES: tuple[str, ...] = (*_FIXED, "wrn-DEPTH-WIDTH", "timm:NAME", "package:function")


def create(
    name: str,
    *,
    classes: int,
    channels: int,
    size: int | tuple[int, int],
    pretrained: str | None = None,
) -> nn.Module:
    """A model for float images (N, C, H, W) that gives logits (N, classes).

    Initial weights are drawn from torch's global generator; they are public, whatever its seed.

    Args:
        name: `scattering` (fixed wavelet features and a linear head), `lenet5`, `cnn`, `linear`, `wrn-DEPTH-WIDTH` such
            as `wrn-16-4`, `timm:NAME` for any model of timm, or `package:function` for one's own (called with the
            keywords classes, channels and size).
        classes: number of classes.
        channels: colour channels C of the images.
        size: side of square images in pixels, or height and width (H, W).
        pretrained: the path of a safetensors file whose keys are the model's, or the word `timm` for the weights that
            timm downloads for its model. Weights must come from public data: a run's guarantee does not cover them.

    Raises:
        SfumatoError: an unknown name, numbers out of range, or weights that don't fit.
    """
    positive_integer("classes", classes)
    positive_integer("channels", channels)
    height, width = size if isinstance(size, tuple) else (size, size)
    shape = (positive_integer("image height", height), positive_integer("image width", width))
    if pretrained == "timm":
        model = zoo.create_downloaded(name, classes=classes, channels=channels, size=shape)
    else:
        model = _create(name, classes=classes, channels=channels, size=shape)
        if pretrained is not None:
            load(model, pretrained)
    check_shapes(name, model, classes=classes, channels=channels, size=shape)
    return model


def split(model: nn.Module) -> tuple[Callable[[Tensor], Tensor], nn.Module] | None:
    """Trunk and head of a model that begins with a fixed public function of single images, else None.

    Such a model is `head(trunk(images))`; the trunk gives (N, D) and has nothing that is trained, so its features of
    each image may be computed once and kept. The head is the model's own attribute of that name.
    """
    return (model.features, model.head) if isinstance(model, Scattering) else None


def _create(name: str, *, classes: int, channels: int, size: tuple[int, int]) -> nn.Module:
    if name in _FIXED:
        return _FIXED[name](classes=classes, channels=channels, size=size)
    if match := _WIDE_RESNET.fullmatch(name):
        depth, width = int(match[1]), int(match[2])
        return WideResNet(depth=depth, width=width, classes=classes, channels=channels)
    if name.startswith(zoo.PREFIX):
        return zoo.create(name, classes=classes, channels=channels, size=size)
    if ":" in name:
        return custom.create(name, classes=classes, channels=channels, size=size)
    listing = ", ".join(NAMES)
    raise SfumatoError(f"model must be one of {listing}; got {name!r}", "choose one of these, such as cnn or wrn-16-4")
