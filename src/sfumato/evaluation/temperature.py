"""A temperature for a model's logits, so that its probabilities are as often right as they say (Guo et al. 2017,
arXiv 1706.04599): fitted on public data. The choice by private records is `published`."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sfumato._checks import SfumatoError
from sfumato.data import Part, Preparation, Source, Transform, open_source
from sfumato.evaluation import accuracy
from sfumato.models.losses import LOSSES
from sfumato.randomness import owner_key

MOST = 10_000
"""Public records that a temperature is fitted on, spread over the source."""
RANGE = (0.05, 20.0)


@dataclass(frozen=True, kw_only=True, eq=False)
class PublicCalibration:
    """Public records to fit a temperature on.

    Args:
        source: they are those of both its parts.
        spec: how it is spelt, where it was opened by that.
    """

    source: Source = field(repr=False)
    spec: str | None = None

    def record(self) -> dict[str, Any]:
        """What settings.json keeps of it, and what a run is resumed with."""
        return {"source": self.spec, "fingerprint": self.source.fingerprint}

    def temperature(
        self, module: nn.Module, weights: Mapping[str, Tensor], transform: Preparation, *, loss: str, device: str
    ) -> float:
        """The best for the model with these weights, which stays as it is."""
        own = copy.deepcopy(module)
        own.load_state_dict(weights)
        outputs, labels = [], []
        for part in (self.source.train, self.source.test):
            chosen = _spread(part, math.ceil(MOST * len(part) / (len(self.source.train) + len(self.source.test))))
            outputs.append(accuracy.logits(own, chosen, transform, torch.device(device)))
            labels.append(torch.from_numpy(chosen.labels))
        return fitted(torch.cat(outputs), torch.cat(labels), loss=loss)


def public_calibration(given: str | Source | None, source: Source, transform: Preparation) -> PublicCalibration | None:
    """The public records by their spelling, read as those of the private source are; None where none were asked for.

    Errors: `SfumatoError` for a source that is not of the same kind of records and the same classes, and for the
    private data themselves: a temperature that is fitted on those is a release without noise.
    """
    if given is None:
        return None
    spec = given if isinstance(given, str) else None
    opened = _opened(given, source, transform) if isinstance(given, str) else given
    named = f"calibrate_on {spec}" if spec else "calibrate_on"
    if tuple(opened.classes) != tuple(source.classes):
        raise SfumatoError(
            f"{named} has the classes {', '.join(opened.classes[:5])}, and the source {', '.join(source.classes[:5])}",
            "give a public source of the same classes in the same order, or leave it out",
        )
    if opened.multilabel != source.multilabel:
        raise SfumatoError(
            f"{named} has {'several labels' if opened.multilabel else 'one label'} for each record, unlike the source",
            "give a public source with the same labels, or leave it out",
        )
    if opened.shape != source.shape or (opened.tokens is None) != (source.tokens is None):
        raise SfumatoError(
            f"{named} holds records of shape {opened.shape}, and the source of {source.shape}",
            "give a public source that is read as the private one is",
        )
    if not (source.public or opened.published) and set(opened.materials) & set(source.materials):
        raise SfumatoError(
            f"{named} holds the very data that are private here", "give others that are public, or `report_epsilon`"
        )
    if opened.cache is not None and source.cache is not None:
        one, other = opened.cache.contents, source.cache.contents
        if one.digest != other.digest:
            raise SfumatoError(f"{named} holds features of another backbone", "give those of the same one")
    if not len(opened.train) + len(opened.test):
        raise SfumatoError(f"{named} holds no records", "give another source, or leave it out")
    return PublicCalibration(source=opened, spec=spec)


def _opened(spec: str, source: Source, transform: Preparation) -> Source:
    if spec.startswith("features:"):
        return open_source(spec, owner_key=owner_key())
    if source.tokens is not None:
        like: dict[str, Any] = dict(source.tokens.declaration)
    else:
        like = {"size": source.size, "channels": source.channels}
        if isinstance(transform, Transform):
            like |= {name: getattr(transform, name) for name in ("bit_depth", "window")}
    return open_source(spec, owner_key=owner_key(), public=True, **source.naming, **like)


def _spread(part: Part, most: int) -> Part:
    """At most so many records of a part, spread evenly."""
    if len(part) <= most:
        return part
    chosen = np.zeros(len(part), bool)
    chosen[np.linspace(0, len(part) - 1, most).round().astype(int)] = True
    return part.chosen(chosen)


def fitted(outputs: Tensor, labels: Tensor, *, loss: str) -> float:
    """The temperature by which logits (N, classes) have the least loss for labels (N,).

    >>> logits = torch.tensor([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [4.0, 0.0]])
    >>> round(fitted(logits, torch.tensor([0, 0, 0, 1]), loss="softmax"), 2)  # three in four are right: 4 / log 3
    3.64
    """
    from scipy.optimize import minimize_scalar

    outputs = outputs.double()
    if not bool(outputs.isfinite().all()):
        return 1.0

    def cost(logarithm: float) -> float:
        return LOSSES[loss](outputs / math.exp(logarithm), labels).item()

    found = minimize_scalar(cost, bounds=(math.log(RANGE[0]), math.log(RANGE[1])), method="bounded")
    return math.exp(float(found.x))  # type: ignore[union-attr]
