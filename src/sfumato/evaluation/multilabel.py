"""How a model does where none, one or many labels are true of a record. Without noise: private figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from sfumato._checks import SfumatoError, fraction
from sfumato.evaluation import diagnostic
from sfumato.evaluation.accuracy import finite
from sfumato.models.losses import MULTILABEL, multilabel_cross_entropy, probabilities
from sfumato.report import Between, LabelScore, MultilabelEvaluation, wilson

THRESHOLD = 0.5
REMEDY = "give a score from which on a label is said to be true, such as 0.5"


def decided(outputs: Tensor, threshold: float = THRESHOLD) -> Tensor:
    """Whether each label is said to be true, bool (N, L), of logits (N, L): from a score of the threshold on.

    >>> import torch
    >>> decided(torch.tensor([[0.0, -3.0, 2.0]])).tolist()
    [[True, False, True]]
    """
    return probabilities(outputs.double(), MULTILABEL) >= threshold


def score_of(outputs: Tensor, labels: Tensor) -> dict[str, Any]:
    """Accuracy (the share of right decisions at 0.5) and loss of logits (N, L) for labels (N, L) of 0 and 1."""
    _same(outputs, labels)
    loss = multilabel_cross_entropy(outputs.double(), labels).item()
    return {
        "accuracy": (decided(outputs) == labels.bool()).double().mean().item(),
        "top5": None,
        "loss": finite(loss),
    }


def evaluation(
    outputs: Tensor, labels: Tensor, names: Sequence[str], *, threshold: float = THRESHOLD
) -> MultilabelEvaluation:
    """How logits (N, L) do against labels (N, L) of 0 and 1, both on the CPU.

    Each label has an area under its ROC curve (DeLong et al. 1988), sensitivity and specificity (Clopper and Pearson
    1934), as in `diagnostic`. The share of right decisions has Wilson's interval for as many trials as there are
    records, not decisions: those about one record hang together.
    """
    fraction("threshold", threshold, remedy=REMEDY)
    _same(outputs, labels)
    if labels.shape != (len(outputs), len(names)) or not len(names) or not len(labels):
        raise SfumatoError(
            f"{tuple(labels.shape)} labels are not of {len(names)} names", "give a source of the model's"
        )
    right = decided(outputs, threshold) == labels.bool()
    scores = probabilities(outputs.double(), MULTILABEL).numpy()
    return MultilabelEvaluation(
        accuracy=_mean(right.double().mean(1)),
        exact_match=diagnostic.share(int(right.all(1).sum()), len(right)),
        loss=multilabel_cross_entropy(outputs.double(), labels).item(),
        threshold=threshold,
        labels=[
            _label(name, scores[:, place], labels[:, place].bool().numpy(), threshold)
            for place, name in enumerate(names)
        ],
    )


def _label(name: str, scores: np.ndarray, true: np.ndarray, threshold: float) -> LabelScore:
    """The figures of one label: those that the records allow for."""
    own, others = scores[true], scores[~true]
    known = len(own) > 0 and len(others) > 0 and bool(np.isfinite(scores).all())
    found, rejected = int((own >= threshold).sum()), int((others < threshold).sum())
    return LabelScore(
        name=name,
        positives=len(own),
        negatives=len(others),
        auc=diagnostic.auc(own, others) if known else None,
        sensitivity=diagnostic.share(found, len(own)) if len(own) else None,
        specificity=diagnostic.share(rejected, len(others)) if len(others) else None,
    )


def _mean(shares: Tensor) -> Between:
    """The mean of the records' own shares (N,), with Wilson's interval.

    No variable within [0, 1] varies more than the coin of its mean, so the interval is at least as wide as it must be.
    """
    return Between(shares.mean().item(), *wilson(shares.sum().item(), len(shares)))


def _same(outputs: Tensor, labels: Tensor) -> None:
    """Refuse a comparison that would broadcast: labels (N,) of classes are none of these."""
    if outputs.shape != labels.shape or outputs.dim() != 2:
        raise TypeError(f"labels must be {tuple(outputs.shape)} of 0 and 1, got {tuple(labels.shape)}")
