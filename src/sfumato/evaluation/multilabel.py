"""Multilabel evaluation: any number of labels per example. The figures have no noise and are private."""

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
REMEDY = "give the lowest score at which a label is predicted, such as 0.5"


def decided(outputs: Tensor, threshold: float = THRESHOLD) -> Tensor:
    """The predicted labels, bool (N, L), from logits (N, L): those with a score at or above the threshold.

    >>> import torch
    >>> decided(torch.tensor([[0.0, -3.0, 2.0]])).tolist()
    [[True, False, True]]
    """
    return probabilities(outputs.double(), MULTILABEL) >= threshold


def score_of(outputs: Tensor, labels: Tensor) -> dict[str, Any]:
    """Accuracy (the fraction of correct decisions at 0.5) and loss of logits (N, L) for labels (N, L) of 0 and 1."""
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
    """Evaluates logits (N, L) against labels (N, L) of 0 and 1, both on the CPU.

    Each label has an area under its ROC curve (DeLong et al. 1988), a sensitivity and a specificity (Clopper and
    Pearson 1934), as in `diagnostic`. The fraction of correct decisions has Wilson's interval with N trials, because
    the decisions on one example are correlated.
    """
    fraction("threshold", threshold, remedy=REMEDY)
    _same(outputs, labels)
    if labels.shape != (len(outputs), len(names)) or not len(names) or not len(labels):
        raise SfumatoError(
            f"labels of shape {tuple(labels.shape)} don't match {len(names)} names",
            "give a source with the model's labels",
        )
    right = decided(outputs, threshold) == labels.bool()
    scores = probabilities(outputs.double(), MULTILABEL).numpy()
    return MultilabelEvaluation(
        accuracy=_mean(right.double().mean(1)),
        exact_match=diagnostic.share(int(right.all(1).sum()), len(right)),
        loss=multilabel_cross_entropy(outputs.double(), labels).item(),
        threshold=threshold,
        labels=[
            _label(name, scores[:, index], labels[:, index].bool().numpy(), threshold)
            for index, name in enumerate(names)
        ],
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
        sensitivity=diagnostic.share(hits, len(positives)) if len(positives) else None,
        specificity=diagnostic.share(rejected, len(negatives)) if len(negatives) else None,
    )


def _mean(shares: Tensor) -> Between:
    """The mean of the examples' fractions (N,), with Wilson's interval.

    A variable in [0, 1] has at most the variance of a Bernoulli variable with the same mean, so the interval is
    conservative.
    """
    return Between(shares.mean().item(), *wilson(shares.sum().item(), len(shares)))


def _same(outputs: Tensor, labels: Tensor) -> None:
    """Refuses shapes that would broadcast, such as class labels (N,)."""
    if outputs.shape != labels.shape or outputs.dim() != 2:
        raise TypeError(f"labels must be {tuple(outputs.shape)} of 0 and 1, got {tuple(labels.shape)}")
