"""How a model does on records: accuracy, loss, confusion, samples. Without noise: private figures."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfumato._checks import SfumatoError
from sfumato.data import CachedRecords, Part, Preparation, TextRecords
from sfumato.gradients import outputs_alone, same_throughout
from sfumato.models import evaluating
from sfumato.models.losses import LOSSES, exclusive, probabilities
from sfumato.report import Calibration, Evaluation, OverSteps, png

BATCH = 256
SAMPLES = 24
BINS = 15
"""Of confidence, of equal width."""


def logits(
    module: nn.Module,
    records: Part,
    transform: Preparation,
    device: torch.device,
    *,
    places: Sequence[int] | np.ndarray | None = None,
) -> Tensor:
    """Logits (N, classes), on the CPU, of all records or of those at these places; the module is in evaluation mode
    meanwhile."""
    count = len(records) if places is None else len(places)
    parts = [slice(start, start + BATCH) for start in range(0, count, BATCH)]
    rows = parts if places is None else [np.asarray(places[part], np.int64) for part in parts]
    with evaluating(module), torch.inference_mode():
        return torch.cat(
            [module(transform(torch.from_numpy(records.take(one)).to(device))).float().cpu() for one in rows]
        )


def logits_alone(module: nn.Module, blocks: Iterable[Tensor]) -> Tensor:
    """Logits (N, classes), on the CPU, of inputs that come in blocks (n, ...) of at most `BATCH`, each one's by itself.

    **Guarantee.** A row is a function of its own input and of the model, whatever a model makes of a batch
    (`outputs_alone`). It is always computed beside as many others: short blocks are filled up with zeros, so that not
    even rounding tells how many there are.
    """
    found: list[Tensor] = []
    with evaluating(module), ExitStack() as around:
        for block in blocks:
            if not found:
                around.enter_context(same_throughout(module, torch.zeros_like(block[:1])))
            filled = F.pad(block, (0, 0) * (block.dim() - 1) + (0, BATCH - len(block)))
            found.append(outputs_alone(module, filled)[: len(block)].float().cpu())
    return torch.cat(found)


@dataclass(frozen=True, kw_only=True)
class Score:
    """How often the label is the first choice, how often among the first five (shares; None with five classes or
    fewer), and the mean loss (nats; NaN or Inf where training has diverged), on some records."""

    accuracy: float
    top5: float | None
    loss: float

    def to_dict(self) -> dict[str, Any]:
        """The figures as JSON-ready data."""
        return asdict(self) | {"loss": finite(self.loss)}


def score_of(outputs: Tensor, labels: Tensor, *, loss: str = "softmax") -> Score:
    """How logits (N, classes) do against labels (N,), both on the CPU, by the loss of that name.

    One class is right for each record; of several labels speaks `multilabel`.
    """
    if not exclusive(loss) or labels.dim() != 1:
        raise TypeError(f"one label for each record is measured here, got loss {loss} and {tuple(labels.shape)}")
    top5 = None
    if outputs.shape[1] > 5:
        top5 = (outputs.topk(5, dim=1).indices == labels.unsqueeze(1)).any(1).double().mean().item()
    pieces = zip(outputs.split(BATCH), labels.split(BATCH), strict=True)  # float64 a piece at a time
    total = sum(LOSSES[loss](some.double(), known).item() * len(known) for some, known in pieces)
    return Score(
        accuracy=(outputs.argmax(1) == labels).double().mean().item(), top5=top5, loss=total / max(1, len(labels))
    )


def evaluation(outputs: Tensor, records: Part, classes: Sequence[str], *, loss: str = "softmax") -> Evaluation:
    """Accuracy, loss, confusion matrix and some samples of logits (N, classes), half of them errors where there are
    that many.

    """
    labels = torch.from_numpy(records.labels)
    samples, places = [], shown(outputs, records)
    if places:
        chosen, rows = outputs.argmax(1), np.array(places, np.int64)
        scores = probabilities(outputs[places].double(), loss).amax(1).tolist()
        texts = records.texts if isinstance(records, TextRecords) else None
        held = [png(image) for image in records.take(rows)] if texts is None else texts[rows].tolist()
        samples = [
            (one, classes[int(labels[i])], classes[int(chosen[i])], score)
            for i, one, score in zip(places, held, scores, strict=True)
        ]
    found = calibration(outputs, labels, loss=loss)
    return replace(summary(outputs, labels, classes, loss=loss), samples=samples, calibration=found)


def shown(outputs: Tensor, records: Part) -> list[int]:
    """Where the samples of an evaluation stand: half of them errors, where there are that many, across the classes.

    Features have none to show, nor have texts that are numbers.
    """
    if isinstance(records, CachedRecords) or (isinstance(records, TextRecords) and records.texts is None):
        return []
    chosen, labels = outputs.argmax(1), torch.from_numpy(records.labels)
    wrong = _across_classes(torch.nonzero(chosen != labels).flatten().tolist(), labels)[: SAMPLES // 2]
    right = _across_classes(torch.nonzero(chosen == labels).flatten().tolist(), labels)[: SAMPLES - len(wrong)]
    return sorted(wrong + right)


def summary(outputs: Tensor, labels: Tensor, classes: Sequence[str], *, loss: str = "softmax") -> Evaluation:
    """How logits (N, classes) do against labels (N,), both on the CPU."""
    count, figures = len(classes), score_of(outputs, labels, loss=loss)
    confusion = torch.bincount(labels * count + outputs.argmax(1), minlength=count * count).reshape(count, count)
    return Evaluation(**vars(figures), classes=tuple(classes), confusion=confusion.tolist())


def calibration(outputs: Tensor, labels: Tensor, *, loss: str) -> Calibration | None:
    """How far the confidence of logits (N, classes) is from how often they are right, without noise: a private figure.

    Expected calibration error over 15 bins of equal width. None where a logit is no finite number.
    """
    if not len(labels) or not bool(outputs.isfinite().all()):
        return None
    confidence, chosen = probabilities(outputs.double(), loss).max(1)
    right = (chosen == labels).double()
    place = (confidence * BINS).long().clamp(max=BINS - 1)
    count, sure, hits = (
        torch.bincount(place, values, minlength=BINS) for values in (torch.ones_like(right), confidence, right)
    )
    return Calibration(
        error=((sure - hits).abs().sum() / len(labels)).item(),
        bands=[
            (bin_ / BINS, (bin_ + 1) / BINS, int(count[bin_]), (sure / count)[bin_].item(), (hits / count)[bin_].item())
            for bin_ in range(BINS)
            if count[bin_]
        ],
    )


def _across_classes(places: list[int], labels: Tensor) -> list[int]:
    """The first of each class, then the second of each class, and so on."""
    seen: dict[int, int] = {}
    ranked = []
    for place in places:
        label = int(labels[place])
        seen[label] = seen.get(label, 0) + 1
        ranked.append((seen[label], label, place))
    return [place for *_, place in sorted(ranked)]


def to_dict(result: Evaluation) -> dict[str, Any]:
    """The evaluation as JSON-ready data."""
    samples = [
        [{"text": one} if isinstance(one, str) else base64.b64encode(one).decode("ascii"), truth, chosen, finite(score)]
        for one, truth, chosen, score in result.samples
    ]
    names = ("accuracy", "top5", "loss", "classes", "confusion", "samples", "over_steps", "calibration")
    known = asdict(replace(result, samples=[])) | {"loss": finite(result.loss), "samples": samples}
    known["classes"] = list(result.classes)
    return {name: known[name] for name in names if known[name] is not None or name in ("top5", "loss")}


def from_dict(data: Mapping[str, Any]) -> Evaluation:
    """The evaluation that `to_dict` wrote."""
    try:
        samples = [
            (one["text"] if isinstance(one, dict) else base64.b64decode(one), truth, chosen, _known(value))
            for one, truth, chosen, value in data["samples"]
        ]
        kinds = {"over_steps": OverSteps, "calibration": Calibration}
        parts = {name: kind(**data[name]) for name, kind in kinds.items() if data.get(name) is not None}
        return Evaluation(**{**data, **parts, "samples": samples, "loss": _known(data["loss"])})
    except (KeyError, TypeError, ValueError) as error:
        raise SfumatoError(
            f"evaluation.json holds other things than were measured ({error!r})", "restore it from a copy"
        ) from None


def finite(value: float) -> float | None:
    """The value for JSON, which has no word for what a diverged model gives."""
    return value if math.isfinite(value) else None


def _known(value: float | None) -> float:
    return math.nan if value is None else value
