"""Temperature scaling on public data (Guo et al. 2017, arXiv 1706.04599).

The temperature calibrates a model's probabilities. The part `published` chooses one on private data instead.
"""

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
"""Largest number of public records that a temperature is fitted on, spread over the source."""
RANGE = (0.05, 20.0)


@dataclass(frozen=True, kw_only=True, eq=False)
class PublicCalibration:
    """Public records for fitting a temperature.

    Args:
        source: the source; the records of both its parts are used.
        spec: the source's spec, if it was opened from one.
    """

    source: Source = field(repr=False)
    spec: str | None = None

    def record(self) -> dict[str, Any]:
        """The entry in settings.json, from which a run is resumed."""
        return {"source": self.spec, "fingerprint": self.source.fingerprint}

    def temperature(
        self, module: nn.Module, weights: Mapping[str, Tensor], transform: Preparation, *, loss: str, device: str
    ) -> float:
        """The best temperature for a copy of the model with these weights."""
        model = copy.deepcopy(module)
        model.load_state_dict(weights)
        outputs, labels = [], []
        for part in (self.source.train, self.source.test):
            chosen = _evenly_spaced(
                part, math.ceil(MOST * len(part) / (len(self.source.train) + len(self.source.test)))
            )
            outputs.append(accuracy.logits(model, chosen, transform, torch.device(device)))
            labels.append(torch.from_numpy(chosen.labels))
        return fit_temperature(torch.cat(outputs), torch.cat(labels), loss=loss)


def public_calibration(given: str | Source | None, source: Source, transform: Preparation) -> PublicCalibration | None:
    """Opens the public records for calibration, read in the same way as the private source; None without any.

    Raises:
        SfumatoError: another kind of records or other classes than the private source; the private data themselves,
            because a temperature fitted on these would be a release without noise.
    """
    if given is None:
        return None
    if source.next_words:
        source.require_classes("`calibrate_on`")
    spec = given if isinstance(given, str) else None
    opened = _open(given, source, transform) if isinstance(given, str) else given
    named = f"calibrate_on {spec}" if spec else "calibrate_on"
    if tuple(opened.classes) != tuple(source.classes):
        raise SfumatoError(
            f"{named} has the classes {', '.join(opened.classes[:5])}, but the source {', '.join(source.classes[:5])}",
            "give a public source with the same classes in the same order, or leave it out",
        )
    if opened.multilabel != source.multilabel:
        raise SfumatoError(
            f"{named} has {'several labels' if opened.multilabel else 'one label'} for each record, unlike the source",
            "give a public source with the same labels, or leave it out",
        )
    if opened.shape != source.shape or (opened.tokens is None) != (source.tokens is None):
        raise SfumatoError(
            f"{named} holds records of shape {opened.shape}, but the source has {source.shape}",
            "give a public source that is read in the same way as the private one",
        )
    if not (source.public or opened.published) and set(opened.data_digests) & set(source.data_digests):
        raise SfumatoError(f"{named} holds the private data of this run", "give other, public data")
    if opened.cache is not None and source.cache is not None:
        one, other = opened.cache.contents, source.cache.contents
        if one.digest != other.digest:
            raise SfumatoError(f"{named} holds features of another backbone", "give features of the same backbone")
    if not len(opened.train) + len(opened.test):
        raise SfumatoError(f"{named} holds no records", "give another source, or leave it out")
    return PublicCalibration(source=opened, spec=spec)


def _open(spec: str, source: Source, transform: Preparation) -> Source:
    if spec.startswith("features:"):
        return open_source(spec, owner_key=owner_key())
    if source.tokens is not None:
        declared: dict[str, Any] = dict(source.tokens.declaration)
    else:
        declared = {"size": source.size, "channels": source.channels}
        if isinstance(transform, Transform):
            declared |= {name: getattr(transform, name) for name in ("bit_depth", "window")}
    return open_source(spec, owner_key=owner_key(), public=True, **source.class_arguments, **declared)


def _evenly_spaced(part: Part, most: int) -> Part:
    """At most `most` records of a part, evenly spaced."""
    if len(part) <= most:
        return part
    chosen = np.zeros(len(part), bool)
    chosen[np.linspace(0, len(part) - 1, most).round().astype(int)] = True
    return part.select(chosen)


def fit_temperature(outputs: Tensor, labels: Tensor, *, loss: str) -> float:
    """The temperature at which logits (N, classes) have the smallest loss for labels (N,).

    >>> logits = torch.tensor([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [4.0, 0.0]])
    >>> labels = torch.tensor([0, 0, 0, 1])  # three in four are right: 4 / log 3
    >>> round(fit_temperature(logits, labels, loss="softmax"), 2)
    3.64
    """
    from scipy.optimize import minimize_scalar

    outputs = outputs.double()
    if not bool(outputs.isfinite().all()):
        return 1.0

    def cost(logarithm: float) -> float:
        return LOSSES[loss](outputs / math.exp(logarithm), labels).item()

    best = minimize_scalar(cost, bounds=(math.log(RANGE[0]), math.log(RANGE[1])), method="bounded")
    return math.exp(float(best.x))  # type: ignore[union-attr]
