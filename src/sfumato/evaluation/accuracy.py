"""Accuracy, loss, confusion matrix and sample predictions, and the figures of several labels. None has noise: all are
private.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfumato._checks import SfumatoError, fraction
from sfumato.data import CachedRecords, Part, Preparation, TextRecords
from sfumato.evaluation import diagnostic
from sfumato.gradients import per_example_outputs, unchanged_outputs
from sfumato.models import evaluation_mode
from sfumato.models.losses import LOSSES, MULTILABEL, is_exclusive, multilabel_cross_entropy, probabilities
from sfumato.report import Evaluation, FigureInterval, LabelScore, MultilabelEvaluation, StepSpread, png, wilson

BATCH = 256
SAMPLES = 24
BINS = 15
"""Number of confidence bins, of equal width."""


def logits(
    module: nn.Module,
    records: Part,
    transform: Preparation,
    device: torch.device,
    *,
    places: Sequence[int] | np.ndarray | None = None,
) -> Tensor:
    """Computes logits (N, classes), on the CPU, of all records or of those at `places`, in evaluation mode."""
    count = len(records) if places is None else len(places)
    parts = [slice(start, start + BATCH) for start in range(0, count, BATCH)]
    rows = parts if places is None else [np.asarray(places[part], np.int64) for part in parts]
    with evaluation_mode(module), torch.inference_mode():
        return torch.cat(
            [module(transform(torch.from_numpy(records.take(batch)).to(device))).float().cpu() for batch in rows]
        )


def per_example_logits(module: nn.Module, blocks: Iterable[Tensor]) -> Tensor:
    """Computes logits (N, classes), on the CPU, of inputs in blocks (n, ...) of at most `BATCH`, each input alone.

    **Guarantee.** A row is a function of its input and of the model, even if the model mixes examples within a batch
    (`per_example_outputs`). The batch size is constant: short blocks are padded with zeros, so that not even rounding
    depends on the number of inputs.
    """
    outputs: list[Tensor] = []
    with evaluation_mode(module), ExitStack() as stack:
        for block in blocks:
            if not outputs:
                stack.enter_context(unchanged_outputs(module, torch.zeros_like(block[:1])))
            padded = F.pad(block, (0, 0) * (block.dim() - 1) + (0, BATCH - len(block)))
            outputs.append(per_example_outputs(module, padded)[: len(block)].float().cpu())
    return torch.cat(outputs)


@dataclass(frozen=True, kw_only=True)
class Score:
    """Accuracy, top-5 accuracy and mean loss.

    Accuracies are in [0, 1]; `top5` is None with five classes or fewer. The loss is in nats, and NaN or infinite if
    training diverged.
    """

    accuracy: float
    top5: float | None
    loss: float

    def to_dict(self) -> dict[str, Any]:
        """The figures as JSON-ready data."""
        return asdict(self) | {"loss": finite_or_none(self.loss)}


def score_of(outputs: Tensor, labels: Tensor, *, loss: str = "softmax") -> Score:
    """Scores logits (N, classes) against labels (N,), both on the CPU, with the named loss.

    Each example has one class. For several labels see `multilabel`.
    """
    if not is_exclusive(loss) or labels.dim() != 1:
        raise TypeError(f"score_of needs one label per example, got loss {loss} and labels {tuple(labels.shape)}")
    top5 = None
    if outputs.shape[1] > 5:
        top5 = (outputs.topk(5, dim=1).indices == labels.unsqueeze(1)).any(1).double().mean().item()
    batches = zip(outputs.split(BATCH), labels.split(BATCH), strict=True)  # limits the memory of float64
    total = sum(LOSSES[loss](some.double(), true).item() * len(true) for some, true in batches)
    return Score(
        accuracy=(outputs.argmax(1) == labels).double().mean().item(), top5=top5, loss=total / max(1, len(labels))
    )


def evaluation(outputs: Tensor, records: Part, classes: Sequence[str], *, loss: str = "softmax") -> Evaluation:
    """Evaluates logits (N, classes): accuracy, loss, confusion matrix, calibration error and sample predictions."""
    labels = torch.from_numpy(records.labels)
    samples, indices = [], sample_indices(outputs, records)
    if indices:
        predicted, rows = outputs.argmax(1), np.array(indices, np.int64)
        scores = probabilities(outputs[indices].double(), loss).amax(1).tolist()
        texts = records.texts if isinstance(records, TextRecords) else None
        inputs = [png(image) for image in records.take(rows)] if texts is None else texts[rows].tolist()
        samples = [
            (content, classes[int(labels[i])], classes[int(predicted[i])], score)
            for i, content, score in zip(indices, inputs, scores, strict=True)
        ]
    result = calibration(outputs, labels, loss=loss)
    error = None if result is None else result.error
    return replace(summary(outputs, labels, classes, loss=loss), samples=samples, calibration_error=error)


def sample_indices(outputs: Tensor, records: Part) -> list[int]:
    """The indices of the sample predictions: across the classes, and half of them errors if there are enough.

    There are none for features and for texts stored as token numbers.
    """
    if isinstance(records, CachedRecords) or (isinstance(records, TextRecords) and records.texts is None):
        return []
    predicted, labels = outputs.argmax(1), torch.from_numpy(records.labels)
    wrong = _across_classes(torch.nonzero(predicted != labels).flatten().tolist(), labels)[: SAMPLES // 2]
    right = _across_classes(torch.nonzero(predicted == labels).flatten().tolist(), labels)[: SAMPLES - len(wrong)]
    return sorted(wrong + right)


def summary(outputs: Tensor, labels: Tensor, classes: Sequence[str], *, loss: str = "softmax") -> Evaluation:
    """Accuracy, loss, confusion matrix and weighted area under the ROC curves of logits (N, classes) for labels (N,),
    both on the CPU."""
    scores, one_hot = probabilities(outputs.double(), loss), F.one_hot(labels, len(classes)).bool()
    area = diagnostic.weighted_auc(scores.numpy(), one_hot.numpy())
    count, figures = len(classes), score_of(outputs, labels, loss=loss)
    confusion = torch.bincount(labels * count + outputs.argmax(1), minlength=count * count).reshape(count, count)
    return Evaluation(**vars(figures), classes=tuple(classes), confusion=confusion.tolist(), weighted_auc=area)


class Calibration(NamedTuple):
    """The calibration of confidence, without noise.

    Attributes:
        error: the expected calibration error: the mean over records of their bin's |confidence - accuracy|.
        bands: for each bin with records its ends, its number of records, their mean confidence and their accuracy.
    """

    error: float
    bands: Sequence[tuple[float, float, int, float, float]]


def calibration(outputs: Tensor, labels: Tensor, *, loss: str) -> Calibration | None:
    """Expected calibration error of logits (N, classes), over 15 bins of equal width. No noise: a private figure.

    None without labels, or if a logit is not finite.
    """
    if not len(labels) or not bool(outputs.isfinite().all()):
        return None
    confidence, predicted = probabilities(outputs.double(), loss).max(1)
    right = (predicted == labels).double()
    bins = (confidence * BINS).long().clamp(max=BINS - 1)
    count, total, hits = (
        torch.bincount(bins, values, minlength=BINS) for values in (torch.ones_like(right), confidence, right)
    )
    return Calibration(
        error=((total - hits).abs().sum() / len(labels)).item(),
        bands=[
            (
                bin_ / BINS,
                (bin_ + 1) / BINS,
                int(count[bin_]),
                (total / count)[bin_].item(),
                (hits / count)[bin_].item(),
            )
            for bin_ in range(BINS)
            if count[bin_]
        ],
    )


def _across_classes(indices: list[int], labels: Tensor) -> list[int]:
    """The first of each class, then the second of each class, and so on."""
    counts: dict[int, int] = {}
    ranked = []
    for index in indices:
        label = int(labels[index])
        counts[label] = counts.get(label, 0) + 1
        ranked.append((counts[label], label, index))
    return [index for *_, index in sorted(ranked)]


def to_dict(result: Evaluation) -> dict[str, Any]:
    """The evaluation as JSON-ready data."""
    samples = [
        [
            {"text": content} if isinstance(content, str) else base64.b64encode(content).decode("ascii"),
            label,
            guess,
            finite_or_none(score),
        ]
        for content, label, guess, score in result.samples
    ]
    names = ("accuracy", "top5", "weighted_auc", "loss", "classes", "confusion", "samples", "over_steps")
    names += ("calibration_error",)
    data = asdict(replace(result, samples=[])) | {"loss": finite_or_none(result.loss), "samples": samples}
    data["classes"] = list(result.classes)
    return {name: data[name] for name in names if data[name] is not None or name in ("top5", "loss")}


def from_dict(data: Mapping[str, Any]) -> Evaluation:
    """The evaluation that `to_dict` wrote."""
    samples = [
        (content["text"] if isinstance(content, dict) else base64.b64decode(content), label, guess, _or_nan(value))
        for content, label, guess, value in data["samples"]
    ]
    parts: dict[str, Any] = {}
    if (spread := data.get("over_steps")) is not None:
        parts["over_steps"] = StepSpread(**spread)
    if (area := data.get("weighted_auc")) is not None:
        parts["weighted_auc"] = FigureInterval(*area)
    return Evaluation(**{**data, **parts, "samples": samples, "loss": _or_nan(data["loss"])})


def finite_or_none(value: float) -> float | None:
    """The value, or None if it is not finite, because JSON has neither NaN nor infinity."""
    return value if math.isfinite(value) else None


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


LABEL_THRESHOLD = 0.5
"""Score from which a label is predicted."""


def predict_labels(outputs: Tensor, threshold: float = LABEL_THRESHOLD) -> Tensor:
    """The predicted labels, bool (N, L), from logits (N, L): those with a score at or above the threshold.

    >>> import torch
    >>> predict_labels(torch.tensor([[0.0, -3.0, 2.0]])).tolist()
    [[True, False, True]]
    """
    return probabilities(outputs.double(), MULTILABEL) >= threshold


def label_score(outputs: Tensor, labels: Tensor) -> dict[str, Any]:
    """Accuracy (the fraction of correct decisions at 0.5) and loss of logits (N, L) for labels (N, L) of 0 and 1."""
    _check_shapes(outputs, labels)
    loss = multilabel_cross_entropy(outputs.double(), labels).item()
    return {
        "accuracy": (predict_labels(outputs) == labels.bool()).double().mean().item(),
        "top5": None,
        "loss": finite_or_none(loss),
    }


def label_evaluation(
    outputs: Tensor, labels: Tensor, names: Sequence[str], *, threshold: float = LABEL_THRESHOLD
) -> MultilabelEvaluation:
    """Evaluates logits (N, L) against labels (N, L) of 0 and 1, both on the CPU.

    Each label has an area under its ROC curve (DeLong et al. 1988), a sensitivity and a specificity (Clopper and
    Pearson 1934), as in `diagnostic`. The fraction of correct decisions has Wilson's interval with N trials, because
    the decisions on one example are correlated.
    """
    fraction(threshold=threshold, remedy="give the lowest score at which a label is predicted, such as 0.5")
    _check_shapes(outputs, labels)
    if labels.shape != (len(outputs), len(names)) or not len(names) or not len(labels):
        raise SfumatoError(
            f"labels of shape {tuple(labels.shape)} don't match {len(names)} names",
            "give a source with the model's labels",
        )
    right = predict_labels(outputs, threshold) == labels.bool()
    shares = right.double().mean(1)
    scores = probabilities(outputs.double(), MULTILABEL).numpy()
    return MultilabelEvaluation(
        # A share in [0, 1] has at most the variance of a Bernoulli variable with its mean: Wilson's is conservative.
        accuracy=FigureInterval(shares.mean().item(), *wilson(shares.sum().item(), len(shares))),
        exact_match=diagnostic.proportion(int(right.all(1).sum()), len(right)),
        loss=multilabel_cross_entropy(outputs.double(), labels).item(),
        threshold=threshold,
        labels=[
            _figures_of_label(name, scores[:, index], labels[:, index].bool().numpy(), threshold)
            for index, name in enumerate(names)
        ],
        weighted_auc=diagnostic.weighted_auc(scores, labels.bool().numpy()),
    )


def _figures_of_label(name: str, scores: np.ndarray, true: np.ndarray, threshold: float) -> LabelScore:
    """The figures of one label, as far as its positive and negative examples define them."""
    positives, negatives = scores[true], scores[~true]
    defined = len(positives) > 0 and len(negatives) > 0 and bool(np.isfinite(scores).all())
    hits, rejected = int((positives >= threshold).sum()), int((negatives < threshold).sum())
    return LabelScore(
        name=name,
        positives=len(positives),
        negatives=len(negatives),
        auc=diagnostic.auc(positives, negatives) if defined else None,
        sensitivity=diagnostic.proportion(hits, len(positives)) if len(positives) else None,
        specificity=diagnostic.proportion(rejected, len(negatives)) if len(negatives) else None,
    )


def _check_shapes(outputs: Tensor, labels: Tensor) -> None:
    """Refuses shapes that would broadcast, such as class labels (N,)."""
    if outputs.shape != labels.shape or outputs.dim() != 2:
        raise TypeError(f"labels must be {tuple(outputs.shape)} of 0 and 1, got {tuple(labels.shape)}")
