"""The classifier alone, on features that a fixed backbone has made; and the two put together."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from sfumato._checks import SfumatoError, number, positive_integer
from sfumato.models.ensemble import Ensemble
from sfumato.models.name import parse, refuse_unknown
from sfumato.models.weights.backbone import Backbone
from sfumato.models.weights.pretrained import zero_classifier

NAME = "head"


class Head(nn.Module):
    """One linear layer on features (N, D), starting at zero; with a hidden layer of ReLU before it where it has one.

    Args:
        classes: number of classes.
        width: D.
        norm: the L2 norm to which each feature vector is brought first, or 0 to take them as they are. At a known norm
            a step's noise moves every logit by a known amount, and a learning rate can be chosen without looking.
        hidden: units of the hidden layer, or 0 for none.
    """

    def __init__(self, *, classes: int, width: int, norm: float = 0.0, hidden: int = 0):
        super().__init__()
        if number("norm", norm) < 0:
            raise SfumatoError(f"norm must not be negative, got {norm!r}", "give 0 for features as they are")
        self.norm = float(norm)
        positive_integer("width", width)
        self.hidden = nn.Linear(width, positive_integer("hidden", hidden)) if hidden else None
        self.head = nn.Linear(hidden or width, positive_integer("classes", classes))
        zero_classifier(self)

    def forward(self, features: Tensor) -> Tensor:
        """Features (N, D) to logits (N, classes)."""
        if self.norm:
            features = functional.normalize(features, dim=-1) * self.norm
        return self.head(features if self.hidden is None else functional.relu(self.hidden(features)))


class OnBackbone(Head):
    """A head on its backbone: images (N, C, H, W) to logits (N, classes)."""

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
    """The part of a module that takes a backbone's features; of an ensemble, that part of each member."""
    if isinstance(module, Ensemble):
        members = [on_features(member) for member in module.children()]
        return Ensemble(members, method=module.method, loss=module.loss)
    return module.on_features() if isinstance(module, OnBackbone) else module


def create_head(spelling: str, *, classes: int, width: int, backbone: Backbone | None = None) -> Head:
    """The head of that spelling, `head`, `head,norm=12.5` or `head,hidden=256`, on its backbone where one is given.

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
        return OnBackbone(backbone, classes=classes, **options)
    return Head(classes=classes, width=width, **options)
