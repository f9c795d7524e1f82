"""Figures of a test for one class, as medicine reads them, each with a 95% interval. Without noise: private figures."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from sfumato._checks import SfumatoError, fraction
from sfumato.report import Between

CONFIDENCE = 0.95
Z = 1.959964


@dataclass(frozen=True, kw_only=True)
class Diagnostic:
    """How well scores tell records of a class from all others.

    Args:
        positives, negatives: how many records there are of the class, and of all others.
        auc: area under the ROC curve: how often a record of the class has a higher score than one of the others, ties
            counted half, with the interval of DeLong et al. 1988 on the scale of log odds. Of all or nothing, for which
            that has no width, the exact one of as many separate pairs as there are: as likely as their all being right.
        threshold: a score of at least this is a positive test.
        sensitivity, specificity: the shares of the class that test positive, and of the others that test negative, with
            the exact interval of Clopper and Pearson 1934.
        prevalence: the declared share of the class where the test is to be used; None where none was declared.
        positive_value, negative_value: of those who test positive, the share of the class, and of those who test
            negative, the share of the others, at that prevalence. None without one: how many of each were tested says
            nothing of it. The ends of their intervals are those at the ends of sensitivity and specificity, each at the
            confidence sqrt(0.95): both are measured on records of their own, so together they hold in 95% or more.
        curve: (false-positive rate, true-positive rate) at each threshold, rising.
    """

    positives: int
    negatives: int
    auc: Between
    threshold: float
    sensitivity: Between
    specificity: Between
    prevalence: float | None
    positive_value: Between | None
    negative_value: Between | None
    curve: list[tuple[float, float]]

    def to_dict(self) -> dict[str, Any]:
        """The figures as JSON-ready data; of a long curve 200 points."""
        places = np.unique(np.linspace(0, len(self.curve) - 1, min(200, len(self.curve))).round().astype(int))
        shown = vars(self) | {"curve": [self.curve[place] for place in places]}
        return {name: list(value) if isinstance(value, Between) else value for name, value in shown.items()}


def diagnostic(
    scores: np.ndarray, positive: np.ndarray, *, threshold: float = 0.5, prevalence: float | None = None
) -> Diagnostic:
    """The figures of scores float (N,) for records of which some are positive, bool (N,).

    Errors: `SfumatoError` where all records are positive or none is, for scores that are no numbers, and for a
    threshold or a prevalence that is no probability.
    """
    fraction("threshold", threshold, remedy="give a score from which on the test is positive, such as 0.5")
    if prevalence is not None:
        fraction("prevalence", prevalence, remedy="give the share of the class where the test is used, such as 0.01")
    if not np.isfinite(scores).all():
        raise SfumatoError("some scores are no numbers: the model has diverged", "train it again at a smaller rate")
    own, others = scores[positive], scores[~positive]
    if not len(own) or not len(others):
        raise SfumatoError(
            f"{len(own)} records are of the class and {len(others)} are not", "give a source that has some of each"
        )
    found, rejected = int((own >= threshold).sum()), int((others < threshold).sum())
    positive_value = negative_value = None
    if prevalence is not None:
        exact = math.sqrt(CONFIDENCE)
        ends = zip(share(found, len(own), exact), share(rejected, len(others), exact), strict=True)
        each = zip(*(predictive_values(*end, prevalence) for end in ends), strict=True)
        positive_value, negative_value = (Between(*values) for values in each)
    return Diagnostic(
        positives=len(own),
        negatives=len(others),
        auc=auc(own, others),
        threshold=threshold,
        sensitivity=share(found, len(own)),
        specificity=share(rejected, len(others)),
        prevalence=prevalence,
        positive_value=positive_value,
        negative_value=negative_value,
        curve=curve(own, others),
    )


def share(hits: int, count: int, confidence: float = CONFIDENCE) -> Between:
    """A share with its exact interval (Clopper and Pearson 1934).

    >>> [round(end, 4) for end in share(8, 10)]
    [0.8, 0.4439, 0.9748]
    """
    from scipy.stats import beta

    tail = (1 - confidence) / 2
    low = float(beta.ppf(tail, hits, count - hits + 1)) if hits else 0.0
    high = float(beta.ppf(1 - tail, hits + 1, count - hits)) if hits < count else 1.0
    return Between(hits / count, low, high)


def predictive_values(sensitivity: float, specificity: float, prevalence: float) -> tuple[float, float]:
    """Positive and negative predictive value, by Bayes' rule; 0 for a test that is never positive, or never negative.

    >>> [round(value, 3) for value in predictive_values(0.9, 0.9, 0.01)]
    [0.083, 0.999]
    """
    true, false = sensitivity * prevalence, (1 - specificity) * (1 - prevalence)
    right, missed = specificity * (1 - prevalence), (1 - sensitivity) * prevalence
    return (true / (true + false) if true else 0.0), (right / (right + missed) if right else 0.0)


def auc(own: np.ndarray, others: np.ndarray) -> Between:
    """The area under the ROC curve of scores of the class (P,) and of others (Q,)."""
    above, below = np.sort(others), np.sort(own)
    by_own = (np.searchsorted(above, own, "left") + np.searchsorted(above, own, "right")) / (2 * len(others))
    by_others = 1 - (np.searchsorted(below, others, "left") + np.searchsorted(below, others, "right")) / (2 * len(own))
    value = float(by_own.mean())
    variance = sum(
        float(placed.var(ddof=1)) / len(placed) if len(placed) > 1 else value * (1 - value)
        for placed in (by_own, by_others)
    )
    if value in (0, 1):
        pairs = min(len(own), len(others))  # no record in two of them, so that they are independent
        return share(round(value * pairs), pairs)
    half = 0.5 / (len(own) * len(others))
    inner = min(max(value, half), 1 - half)
    if not variance:
        variance = _hanley_mcneil(inner, len(own), len(others))
    middle, spread = math.log(inner / (1 - inner)), Z * math.sqrt(variance) / (inner * (1 - inner))
    low, high = (_logistic(middle - spread), _logistic(middle + spread))
    return Between(value, min(low, value), max(high, value))


def _hanley_mcneil(value: float, own: int, others: int) -> float:
    """The variance of an area under exponential scores (Hanley and McNeil 1982)."""
    first, second = value / (2 - value), 2 * value**2 / (1 + value)
    spread = value * (1 - value) + (own - 1) * (first - value**2) + (others - 1) * (second - value**2)
    return spread / (own * others)


def _logistic(value: float) -> float:
    return 1 / (1 + math.exp(-value)) if value > -700 else 0.0


def curve(own: np.ndarray, others: np.ndarray) -> list[tuple[float, float]]:
    """The ROC curve: (false-positive rate, true-positive rate) for each threshold, rising from (0, 0) to (1, 1)."""
    thresholds = np.unique(np.concatenate([own, others]))[::-1]
    true = 1 - np.searchsorted(np.sort(own), thresholds, "left") / len(own)
    false = 1 - np.searchsorted(np.sort(others), thresholds, "left") / len(others)
    return [(0.0, 0.0), *zip(false.tolist(), true.tolist(), strict=True)]
