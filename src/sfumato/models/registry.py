"""Models by name."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from sfumato._checks import SfumatoError, positive_integer
from sfumato.models.model_spec import create_custom, is_custom, parse, refuse_unknown
from sfumato.models.networks import resnet, zoo
from sfumato.models.networks.dictionary import SMALLEST, Dictionary, Scattering
from sfumato.models.networks.lenet import LeNet, LeNet5, LeNet300100, Linear, SmallCNN, TFTutorial
from sfumato.models.networks.next_word import NextWordLSTM
from sfumato.models.networks.resnet import ResNet18
from sfumato.models.networks.text import Bag, BiLSTM
from sfumato.models.networks.wide_resnet import WideResNet
from sfumato.models.trial import check_shapes
from sfumato.models.weights.pretrained import load

_FIXED: Mapping[str, Callable[..., nn.Module]] = MappingProxyType(
    {
        "dictionary": Dictionary,
        "scattering": Scattering,
        "lenet5": LeNet5,
        "lenet": LeNet,
        "cnn": SmallCNN,
        "linear": Linear,
        "mobilenet-v2": zoo.mobilenet_v2,
        "resnet-50": zoo.resnet_50,
        "lenet-300-100": LeNet300100,
        "vgg": resnet.light,
        "vgg16": resnet.vgg16,
        "resnet-18": ResNet18,
        "tf-tutorial": TFTutorial,
    }
)
_SMALLEST = MappingProxyType(
    {"dictionary": (SMALLEST, "scattering"), "scattering": (8, "linear"), "lenet5": (12, "cnn"), "cnn": (8, "linear")}
)
"""Smallest side of the images in pixels, and the model to suggest for smaller images."""
TEXT_MODELS: Mapping[str, Callable[..., nn.Module]] = MappingProxyType({"bag": Bag, "bilstm": BiLSTM})
NEXT_WORD_MODELS: Mapping[str, Callable[..., nn.Module]] = MappingProxyType({"lstm": NextWordLSTM})
_WIDE_RESNET = re.compile(r"wrn-(\d+)-(\d+)")
_NF_RESNET = re.compile(r"nf-resnet-(\d+)")

PRIORS = ("dictionary",)
"""Models with fixed features learned on synthetic images."""
NAMES: tuple[str, ...] = (*_FIXED, "wrn-DEPTH-WIDTH", "nf-resnet-DEPTH", "timm:NAME", "package:function")


def create(
    name: str,
    *,
    classes: int,
    channels: int,
    size: int | tuple[int, int],
    pretrained: str | None = None,
    head: str = "new",
) -> nn.Module:
    """Creates a model that maps float images (N, C, H, W) to logits (N, classes).

    Initial weights are drawn from torch's global generator. They are public for every seed.

    Args:
        name: `dictionary` and `scattering` (fixed features and a linear head), `lenet5`, `lenet`, `cnn`, `linear`,
            `mobilenet-v2` and `resnet-50` (with group norm), `lenet-300-100`, `vgg`, `vgg16`, `resnet-18` and
            `tf-tutorial` (those of Davody et al. 2020), `wrn-DEPTH-WIDTH` such as `wrn-16-4`, `nf-resnet-DEPTH`
            (50, 101 or 200), `timm:NAME` for any timm model, or `package:function` for a custom model (called with the
            keywords classes, channels and size). Options follow after commas: `wrn-16-4,norm=none`,
            `lenet5,norm=layer,norm_last=1`, `nf-resnet-50,skipinit=1`, or any option of timm or the function.
        classes: number of classes.
        channels: colour channels C of the images.
        size: side of square images in pixels, or height and width (H, W).
        pretrained: a run directory, the path of a safetensors file with the model's keys, or `timm` for the
            weights that timm downloads. They must come from public data: a run's guarantee does not cover them.
        head: "new" for a classifier of zeros on top of pre-trained weights, "pretrained" for the stored one.

    Raises:
        SfumatoError: an unknown name, values out of range, or weights that don't match.
    """
    positive_integer("classes", classes)
    positive_integer("channels", channels)
    height, width = size if isinstance(size, tuple) else (size, size)
    shape = (positive_integer("image height", height), positive_integer("image width", width))
    base, options = parse(name)
    refuse_text_model(name, base)
    if pretrained == "timm":
        model = zoo.create_downloaded(base, options, classes=classes, channels=channels, size=shape, head=head)
    else:
        model = build_untrained(base, options, classes=classes, channels=channels, size=shape)
    model = check_shapes(name, model, classes=classes, shape=(channels, *shape))
    if pretrained not in (None, "timm"):
        load(model, pretrained, head=head)
    return model


def is_prior(spelling: str) -> bool:
    """Whether the model has fixed features learned on synthetic images."""
    return parse(spelling)[0] in PRIORS


def refuse_text_model(spelling: str, base: str) -> None:
    """Refuses a model of texts for images."""
    if base in TEXT_MODELS or base in NEXT_WORD_MODELS:
        raise SfumatoError(
            f"model {spelling!r} is for texts, but these are images", "choose another, such as cnn or wrn-16-4"
        )


def create_for_texts(
    name: str,
    *,
    classes: int,
    vocabulary: int,
    length: int,
    pretrained: str | None = None,
    head: str = "new",
    next_words: bool = False,
) -> nn.Module:
    """Creates a model that maps token numbers (N, T), padded with 0, to logits (N, classes).

    Args:
        name: `bag` (a linear model on the set of words), `bilstm`, or `package:function` for a custom model (called
            with the keywords classes, vocabulary and length); `lstm` for next words. Options follow after commas, as in
            `bilstm,norm=layer`.
        classes: number of classes.
        vocabulary: V, the size of the vocabulary.
        length: T.
        pretrained, head: as for `create`.
        next_words: for a model that predicts the word after each position, with logits (N, T, classes).

    Raises:
        SfumatoError: as for `create`.
    """
    named = NEXT_WORD_MODELS if next_words else TEXT_MODELS
    facts = {"classes": positive_integer("classes", classes), "vocabulary": vocabulary, "length": length}
    base, options = parse(name)
    if base in named:
        model = _build(named[base], base, options, **facts)
    elif is_custom(name):
        model = create_custom(base, options, **facts)
    else:
        listing, of = ", ".join((*named, "package:function")), "next words" if next_words else "texts"
        remedy = f"choose one of these, such as {next(iter(named))}"
        raise SfumatoError(f"model of {of} must be one of {listing}; got {name!r}", remedy)
    if pretrained == "timm":
        raise SfumatoError("pretrained is timm, which has no models of texts", "give a run, or a safetensors file")
    if pretrained is not None:
        load(model, pretrained, head=head)
    shape = torch.zeros(1, length, dtype=torch.int64)
    return check_shapes(name, model, classes=classes, shape=shape, each_word=next_words)


def build_untrained(
    name: str, options: Mapping[str, Any], *, classes: int, channels: int, size: tuple[int, int]
) -> nn.Module:
    """Builds the named network with untrained weights, for images of size (H, W)."""
    facts = {"classes": classes, "channels": channels}
    if name in _FIXED:
        smallest, alternative = _SMALLEST.get(name, (1, ""))
        if min(size) < smallest:
            raise SfumatoError(
                f"{name} needs images of at least {smallest} pixels a side, got {size[0]} x {size[1]}",
                f"choose the model {alternative}, or larger images",
            )
        return _build(_FIXED[name], name, options, size=size, **facts)
    if match := _WIDE_RESNET.fullmatch(name):
        return _build(WideResNet, name, options, depth=int(match[1]), width=int(match[2]), **facts)
    if match := _NF_RESNET.fullmatch(name):
        return _build(zoo.create_nf_resnet, name, options, depth=int(match[1]), **facts)
    if name.startswith(zoo.PREFIX):
        return zoo.create(name, options, classes=classes, channels=channels, size=size)
    if is_custom(name):
        return create_custom(name, options, classes=classes, channels=channels, size=size)
    listing = ", ".join(NAMES)
    near = difflib.get_close_matches(name, NAMES, n=1)
    remedy = f"did you mean {near[0]}" if near else "choose one of these, such as cnn or wrn-16-4"
    raise SfumatoError(f"model must be one of {listing}; got {name!r}", remedy)


def _build(make: Callable[..., nn.Module], name: str, options: Mapping[str, Any], **facts: Any) -> nn.Module:
    """Calls `make` with facts and options; refuses options that are not among its other keywords."""
    parameters = inspect.signature(make).parameters.values()
    known = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY and one.name not in facts]
    refuse_unknown(name, options, known)
    return make(**facts, **options)
