"""Multilabel evaluation: any number of labels per example. The figures have no noise and are private."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from sfumato._checks import SfumatoError, fraction
from sfumato.evaluation import diagnostic
from sfumato.evaluation.accuracy import finite_or_none
from sfumato.models.losses import MULTILABEL, multilabel_cross_entropy, probabilities
from sfumato.report import FigureInterval, LabelScore, MultilabelEvaluation, wilson

THRESHOLD = 0.5
REMEDY = "give the lowest score at which a label is predicted, such as 0.5"


def predict_labels(outputs: Tensor, threshold: float = THRESHOLD) -> Tensor:
    """The predicted labels, bool (N, L), from logits (N, L): those with a score at or above the threshold.

    >>> import torch
    >>> predict_labels(torch.tensor([[0.0, -3.0, 2.0]])).tolist()
    [[True, False, True]]
    """
    return probabilities(outputs.double(), MULTILABEL) >= threshold


def score_of(outputs: Tensor, labels: Tensor) -> dict[str, Any]:
    """Accuracy (the fraction of correct decisions at 0.5) and loss of logits (N, L) for labels (N, L) of 0 and 1."""
    _check_shapes(outputs, labels)
    loss = multilabel_cross_entropy(outputs.double(), labels).item()
    return {
        "accuracy": (predict_labels(outputs) == labels.bool()).double().mean().item(),
        "top5": None,
        "loss": finite_or_none(loss),
    }


def evaluation(
    outputs: Tensor, labels: Tensor, names: Sequence[str], *, threshold: float = THRESHOLD
) -> MultilabelEvaluation:
    """Evaluates logits (N, L) against labels (N, L) of 0 and 1, both on the CPU.

    Each label has an area under its ROC curve (DeLong et al. 1988), a sensitivity and a specificity (Clopper and
    Pearson 1934), as in `diagnostic`. The fraction of correct decisions has Wilson's interval with N trials, because
    the decisions on one example are correlated.
    """
    fraction("threshold", threshold, remedy=REMEDY)
    _check_shapes(outputs, labels)
    if labels.shape != (len(outputs), len(names)) or not len(names) or not len(labels):
        raise SfumatoError(
            f"labels of shape {tuple(labels.shape)} don't match {len(names)} names",
            "give a source with the model's labels",
        )
    right = predict_labels(outputs, threshold) == labels.bool()
    scores = probabilities(outputs.double(), MULTILABEL).numpy()
    return MultilabelEvaluation(
        accuracy=_mean(right.double().mean(1)),
        exact_match=diagnostic.proportion(int(right.all(1).sum()), len(right)),
        loss=multilabel_cross_entropy(outputs.double(), labels).item(),
        threshold=threshold,
        labels=[
            _label(name, scores[:, index], labels[:, index].bool().numpy(), threshold)
            for index, name in enumerate(names)
        ],
        weighted_auc=diagnostic.weighted_auc(scores, labels.bool().numpy()),
    )


def _label(name: str, scores: np.ndarray, true: np.ndarray, threshold: float) -> LabelScore:
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


def _mean(shares: Tensor) -> FigureInterval:
    """The mean of the examples' fractions (N,), with Wilson's interval.

    A variable in [0, 1] has at most the variance of a Bernoulli variable with the same mean, so the interval is
    conservative.
    """
    return FigureInterval(shares.mean().item(), *wilson(shares.sum().item(), len(shares)))


def _check_shapes(outputs: Tensor, labels: Tensor) -> None:
    """Refuses shapes that would broadcast, such as class labels (N,)."""
    if outputs.shape != labels.shape or outputs.dim() != 2:
        raise TypeError(f"labels must be {tuple(outputs.shape)} of 0 and 1, got {tuple(labels.shape)}")
