"""Diagnostic accuracy for one class, as in medicine, with 95% intervals. The figures have no noise and are private."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from sfumato._checks import SfumatoError, fraction
from sfumato.report import FigureInterval

CONFIDENCE = 0.95
Z = 1.959964
ROUNDING = 1e-30
"""A variance below it is zero."""


@dataclass(frozen=True, kw_only=True)
class Diagnostic:
    """How well scores separate examples of a class from all others.

    Args:
        positives, negatives: number of examples of the class, and of all others.
        auc: area under the ROC curve: the fraction of pairs in which the example of the class has the higher score,
            ties counted half, with the interval of DeLong et al. 1988 on the log odds scale. That interval has no width
            for an area of 0 or 1; the exact interval of as many disjoint pairs as there are is used instead.
        threshold: a score at or above it is a positive test.
        sensitivity, specificity: the fraction of the class that tests positive, and of the others that tests negative,
            with the exact interval of Clopper and Pearson 1934.
        prevalence: the declared frequency of the class where the test is used; None if not declared.
        positive_value, negative_value: the fraction of the class among positive tests, and of the others among negative
            tests, at that prevalence. None without a prevalence, because the evaluated examples don't determine it. The
            interval ends are computed from those of sensitivity and specificity at confidence sqrt(0.95) each. These
            two are measured on disjoint examples, so both intervals hold together with probability at least 95%.
        curve: (false positive rate, true positive rate) at each threshold, ascending.
    """

    positives: int
    negatives: int
    auc: FigureInterval
    threshold: float
    sensitivity: FigureInterval
    specificity: FigureInterval
    prevalence: float | None
    positive_value: FigureInterval | None
    negative_value: FigureInterval | None
    curve: list[tuple[float, float]]

    def to_dict(self) -> dict[str, Any]:
        """The figures as JSON-ready data; a long curve is thinned to 200 points."""
        indices = np.unique(np.linspace(0, len(self.curve) - 1, min(200, len(self.curve))).round().astype(int))
        data = vars(self) | {"curve": [self.curve[index] for index in indices]}
        return {name: list(value) if isinstance(value, FigureInterval) else value for name, value in data.items()}


def diagnostic(
    scores: np.ndarray, positive: np.ndarray, *, threshold: float = 0.5, prevalence: float | None = None
) -> Diagnostic:
    """Computes the figures from scores, float (N,), and whether each example is of the class, bool (N,).

    Raises:
        SfumatoError: all examples are positive, or none is; scores that are not finite; a threshold or a prevalence
            outside (0, 1).
    """
    fraction(threshold=threshold, remedy="give the lowest score of a positive test, such as 0.5")
    fraction(
        optional=True, prevalence=prevalence, remedy="give the share of the class where the test is used, such as 0.01"
    )
    if not np.isfinite(scores).all():
        raise SfumatoError(
            "some scores are not finite: the model has diverged", "train it with a smaller learning rate"
        )
    positives, negatives = scores[positive], scores[~positive]
    if not len(positives) or not len(negatives):
        raise SfumatoError(
            f"{len(positives)} records are of the class and {len(negatives)} are not", "give a source that has both"
        )
    hits, rejected = int((positives >= threshold).sum()), int((negatives < threshold).sum())
    positive_value = negative_value = None
    if prevalence is not None:
        exact = math.sqrt(CONFIDENCE)
        ends = zip(proportion(hits, len(positives), exact), proportion(rejected, len(negatives), exact), strict=True)
        each = zip(*(predictive_values(*end, prevalence) for end in ends), strict=True)
        positive_value, negative_value = (FigureInterval(*values) for values in each)
    return Diagnostic(
        positives=len(positives),
        negatives=len(negatives),
        auc=auc(positives, negatives),
        threshold=threshold,
        sensitivity=proportion(hits, len(positives)),
        specificity=proportion(rejected, len(negatives)),
        prevalence=prevalence,
        positive_value=positive_value,
        negative_value=negative_value,
        curve=roc_curve(positives, negatives),
    )


def proportion(hits: int, count: int, confidence: float = CONFIDENCE) -> FigureInterval:
    """A proportion with its exact interval (Clopper and Pearson 1934).

    >>> [round(end, 4) for end in proportion(8, 10)]
    [0.8, 0.4439, 0.9748]
    """
    from scipy.stats import beta

    tail = (1 - confidence) / 2
    low = float(beta.ppf(tail, hits, count - hits + 1)) if hits else 0.0
    high = float(beta.ppf(1 - tail, hits + 1, count - hits)) if hits < count else 1.0
    return FigureInterval(hits / count, low, high)


def predictive_values(sensitivity: float, specificity: float, prevalence: float) -> tuple[float, float]:
    """Positive and negative predictive value, by Bayes' rule; 0 if the test is never positive, or never negative.

    >>> [round(value, 3) for value in predictive_values(0.9, 0.9, 0.01)]
    [0.083, 0.999]
    """
    true, false = sensitivity * prevalence, (1 - specificity) * (1 - prevalence)
    right, missed = specificity * (1 - prevalence), (1 - sensitivity) * prevalence
    return (true / (true + false) if true else 0.0), (right / (right + missed) if right else 0.0)


def auc(positives: np.ndarray, negatives: np.ndarray) -> FigureInterval:
    """The area under the ROC curve from scores of the class (P,) and of the others (Q,)."""
    by_positive, by_negative = _placements(positives, negatives)
    value = float(by_positive.mean())
    variance = sum(
        float(placement.var(ddof=1)) / len(placement) if len(placement) > 1 else value * (1 - value)
        for placement in (by_positive, by_negative)
    )
    return _area_interval(value, variance, len(positives), len(negatives))


def weighted_auc(scores: np.ndarray, positive: np.ndarray) -> FigureInterval | None:
    """The mean over classes of the area of each against all others, weighted by its number of examples.

    This is `sklearn.metrics.roc_auc_score(..., average="weighted", multi_class="ovr")`, over the classes that some
    examples are of and others not; None if there is no such class, or if a score is not finite. The interval is that of
    DeLong et al. 1988 for a weighted sum of areas measured on the same examples, with the weights as given numbers.

    Args:
        scores: a score of each example for each class, float (N, L).
        positive: whether each example is of each class, bool (N, L).
    """
    counts = positive.sum(0)
    classes = np.flatnonzero((counts > 0) & (counts < len(positive)))
    if not len(classes) or not np.isfinite(scores).all():
        return None
    total, deviations = 0.0, np.zeros(len(positive))
    for index in classes:
        true, weight = positive[:, index], float(counts[index] / counts[classes].sum())
        sides = zip((true, ~true), _placements(scores[true, index], scores[~true, index]), strict=True)
        for side, placement in sides:
            area, count = float(placement.mean()), len(placement)
            spread = placement - area if count > 1 else math.sqrt(area * (1 - area))
            deviations[side] += weight * spread / math.sqrt(count * max(1, count - 1))
        total += float(counts[index]) * area
    fewest = counts[classes].min(), (len(positive) - counts[classes]).min()
    value = total / float(counts[classes].sum())
    return _area_interval(value, float((deviations**2).sum()), *map(int, fewest))


def _placements(positives: np.ndarray, negatives: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each positive the fraction of negatives with a lower score, and for each negative the fraction of positives
    with a higher one, ties counted half. Both means are the area."""
    above, below = np.sort(negatives), np.sort(positives)
    by_positive = (np.searchsorted(above, positives, "left") + np.searchsorted(above, positives, "right")) / (
        2 * len(negatives)
    )
    by_negative = 1 - (np.searchsorted(below, negatives, "left") + np.searchsorted(below, negatives, "right")) / (
        2 * len(positives)
    )
    return by_positive, by_negative


def _area_interval(value: float, variance: float, positives: int, negatives: int) -> FigureInterval:
    """An area with its interval on the log odds scale; see `Diagnostic`."""
    if value in (0, 1):
        pairs = min(positives, negatives)  # disjoint pairs are independent
        return proportion(round(value * pairs), pairs)
    if variance < ROUNDING:
        variance = _hanley_mcneil(value, positives, negatives)
    center, spread = math.log(value / (1 - value)), Z * math.sqrt(variance) / (value * (1 - value))
    low, high = (_logistic(center - spread), _logistic(center + spread))
    return FigureInterval(value, min(low, value), max(high, value))


def _hanley_mcneil(value: float, positives: int, negatives: int) -> float:
    """The variance of the area for exponential scores (Hanley and McNeil 1982)."""
    first, second = value / (2 - value), 2 * value**2 / (1 + value)
    spread = value * (1 - value) + (positives - 1) * (first - value**2) + (negatives - 1) * (second - value**2)
    return spread / (positives * negatives)


def _logistic(value: float) -> float:
    return 1 / (1 + math.exp(-value)) if value > -700 else 0.0


def roc_curve(positives: np.ndarray, negatives: np.ndarray) -> list[tuple[float, float]]:
    """The ROC curve: (false positive rate, true positive rate) for each threshold, from (0, 0) to (1, 1)."""
    thresholds = np.unique(np.concatenate([positives, negatives]))[::-1]
    true = 1 - np.searchsorted(np.sort(positives), thresholds, "left") / len(positives)
    false = 1 - np.searchsorted(np.sort(negatives), thresholds, "left") / len(negatives)
    return [(0.0, 0.0), *zip(false.tolist(), true.tolist(), strict=True)]
