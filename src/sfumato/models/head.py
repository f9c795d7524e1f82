"""Heads: classifiers on features of a fixed backbone, alone or with the backbone; and checks of model specs before any
records are read.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sfumato._checks import SfumatoError, not_negative, positive_integer
from sfumato.models.backbone import Backbone
from sfumato.models.ensemble import Ensemble
from sfumato.models.networks import zoo
from sfumato.models.pretrained import zero_classifier
from sfumato.models.registry import (
    NEXT_WORD_MODELS,
    TEXT_MODELS,
    build_untrained,
    create_for_texts,
    import_function,
    is_custom,
    parse,
    refuse_text_model,
    refuse_unknown,
)

NAME = "head"


class Head(nn.Module):
    """A linear layer on features (N, D), starting at zero, optionally after a hidden layer with ReLU.

    Args:
        classes: number of classes.
        width: D.
        norm: L2 norm to which each feature vector is scaled; 0 for no scaling. With a known norm, the effect of a
            step's noise on logits is known, so a learning rate can be chosen without looking at the data.
        hidden: units of the hidden layer; 0 for none.
    """

    def __init__(self, *, classes: int, width: int, norm: float = 0.0, hidden: int = 0):
        super().__init__()
        self.norm = not_negative(norm=norm, remedy="give 0 for features as they are")
        positive_integer(width=width)
        self.hidden = nn.Linear(width, positive_integer(hidden=hidden)) if hidden else None
        self.head = nn.Linear(hidden or width, positive_integer(classes=classes))
        zero_classifier(self)

    def forward(self, features: Tensor) -> Tensor:
        """Features (N, D) to logits (N, classes)."""
        if self.norm:
            features = functional.normalize(features, dim=-1) * self.norm
        return self.head(features if self.hidden is None else functional.relu(self.hidden(features)))


class BackboneWithHead(Head):
    """A head with its backbone: images (N, C, H, W) to logits (N, classes)."""

    def __init__(self, backbone: Backbone, **options: Any):
        super().__init__(width=backbone.width, **options)
        self.backbone = backbone

    def forward(self, images: Tensor) -> Tensor:
        """Images to logits."""
        return super().forward(self.backbone(images))

    def on_features(self) -> Head:
        """The head alone, with the same weights: features (N, D) to logits."""
        alone = Head(classes=self.head.out_features, width=self.backbone.width, norm=self.norm)
        alone.hidden, alone.head = self.hidden, self.head
        return alone


def on_features(module: nn.Module) -> nn.Module:
    """The part of a module that takes a backbone's features; for an ensemble, that part of each member."""
    if isinstance(module, Ensemble):
        members = [on_features(member) for member in module.children()]
        return Ensemble(members, method=module.method, loss=module.loss)
    return module.on_features() if isinstance(module, BackboneWithHead) else module


def create_head(spelling: str, *, classes: int, width: int, backbone: Backbone | None = None) -> Head:
    """The head with this spec, `head`, `head,norm=12.5` or `head,hidden=256`, on a backbone if given.

    Raises:
        SfumatoError: another name, or other options.
    """
    name, options = parse(spelling)
    if name != NAME:
        raise SfumatoError(
            f"model {spelling!r} is for images, and the source holds features of {width} numbers",
            "give head, or head,norm=12.5 to bring features to one norm",
        )
    refuse_unknown(spelling, options, ("norm", "hidden"))
    if backbone is not None:
        return BackboneWithHead(backbone, classes=classes, **options)
    return Head(classes=classes, width=width, **options)


USUAL_SIDES = (32, 64, 224, 8)
"""Image sides in pixels for which a network is built on trial if the size is unknown."""


def check(
    spelling: str,
    *,
    records: str | None = None,
    channels: int | None = None,
    size: int | None = None,
    pretrained: str | None = None,
) -> None:
    """Refuses a spec for which no model can be built, before any records are read.

    A small network is built on the meta device, for images of a common size if the size is unknown. A timm or custom
    model is only looked up.

    Args:
        spelling: a model spec for `create` or `create_for_texts`, or a head (`create_head`).
        records: "images", "texts", or "next words" for texts whose words are predicted; None if not known before the
            source is read.
        channels, size: channels and size of the images, if known.
        pretrained: as for `create`; a path is not opened.

    Raises:
        SfumatoError: as for `create`.
    """
    base, options = parse(spelling)
    if pretrained == "timm" and records not in ("texts", "next words"):
        zoo.require_timm(base)
    if base == NAME and records is None:
        create_head(spelling, classes=2, width=1)
    elif base.startswith(zoo.PREFIX):
        zoo.check(base, options)
    elif is_custom(spelling):
        import_function(base)
    elif records in ("texts", "next words") or (records is None and base in (*TEXT_MODELS, *NEXT_WORD_MODELS)):
        next_words = base in NEXT_WORD_MODELS if records is None else records == "next words"
        with torch.random.fork_rng(devices=[]):
            create_for_texts(spelling, classes=16, vocabulary=16, length=4, next_words=next_words)
    else:
        refuse_text_model(spelling, base)
        sides, counts = USUAL_SIDES if size is None else (size,), (1, 3) if channels is None else (channels,)
        refused: SfumatoError | None = None
        for side, count in itertools.product(sides, counts):
            try:
                with torch.random.fork_rng(devices=[]), torch.device("meta"):
                    build_untrained(base, options, classes=2, channels=count, size=(side, side))
            except SfumatoError as error:
                refused = refused or error
            except (NotImplementedError, RuntimeError):  # not on the meta device; checked later with the data
                return
            else:
                return
        if refused is not None:
            raise refused
