"""The choice of an operating point, and class shares, from noisy counts alone. Post-processing: it costs no privacy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sfumato._checks import SfumatoError, fraction, one_of
from sfumato.models.shares import parse_share
from sfumato.runs.figures.noisy_figures import NoisyFigures
from sfumato.runs.figures.operating import BALANCED, NONE, RULES, SHARES, OperatingPoint, scores, thresholds

DEVIATIONS = 3.0
"""The rule "shares" moves the threshold if shares differ by this many standard deviations of sampling and noise."""
_MOST = 8.0
"""The largest shift of the log odds."""


def check_rule(rule: str, classes: Sequence[str] | None = None) -> str:
    """A valid rule: shares, balanced, none, or CLASS=SHARE.

    Args:
        classes: the names of the classes, if known.
    """
    remedy = "give shares, balanced, none, or a class with the least recall for it, such as pneumonia=0.95"
    if "=" not in rule:
        return one_of("`operating_point`", rule, RULES, remedy=remedy)
    name, share = parse_share(rule, "operating_point")
    fraction(f"`operating_point` of {name!r}", share, remedy=remedy)
    if classes is not None:
        one_of("`operating_point`", name, classes, remedy="name a class of the data")
    return f"{name}={share:g}"


def refuse_unless_two(classes: Sequence[str], loss: str) -> None:
    """Refuse an operating point unless there are two classes whose scores sum to one."""
    if not is_two_class(classes, loss):
        raise SfumatoError(
            f"`operating_point` needs two classes and the loss softmax, got {len(classes)} classes and {loss}",
            "leave it out; `prevalence` shifts the scores of any number of classes",
        )


def is_two_class(classes: Sequence[str], loss: str) -> bool:
    """Whether there are two classes whose scores sum to one."""
    return len(classes) == 2 and loss == "softmax"


def choose_operating_point(figures: NoisyFigures, rule: str = SHARES) -> OperatingPoint | None:
    """The operating point of two classes from a released table, among the edges of the table's bins.

    Args:
        figures: noisy counts.
        rule: "shares": applies if the mean score of a class differs from its share in the table by three standard
            deviations of sampling and noise. It shifts all log odds by the same amount so that the mean score equals
            the share (calibration in the large, Cox 1958), and takes the threshold that is nearest to this shift. For a
            model that is right about everything but the shares, this is Bayes' rule for the shares of the table.
            "balanced": maximises the mean of both classes' recalls. CLASS=SHARE: among the thresholds at which the
            recall of the class is at least the share, by the lower end of its 95% interval, the one with the largest
            recall of the other class.

    **Guarantee.** A function of the released table alone, so it costs nothing further: it sees no label and no record.

    Returns:
        None if the threshold stays at 0.5: nothing is significant, the noise leaves nothing, or no threshold reaches
        the share.
    """
    if rule == NONE or len(figures.classes) != 2 or not figures.table.predictions or estimate_shares(figures) is None:
        return None
    positive = figures.classes[1] if "=" not in rule else parse_share(rule, "operating_point")[0]
    points = [OperatingPoint(positive=positive, threshold=one, rule=rule) for one in thresholds(figures.table.edges)]
    if rule == SHARES:
        return _expecting_as_many(figures, points)
    other = next(name for name in figures.classes if name != positive)
    found = [(point, replace(figures, operating=point).per_class) for point in points]
    known = [
        (point, share[positive], share[other].value)
        for point, share in found
        if share[positive].value is not None and share[other].value is not None
    ]
    if rule == BALANCED:
        best = max(
            known, key=lambda one: ((one[1].value or 0) + (one[2] or 0), -abs(one[0].threshold - 0.5)), default=None
        )
    else:
        least = parse_share(rule, "operating_point")[1]
        kept = [one for one in known if one[1].low >= least]
        best = max(kept, key=lambda one: (one[2], one[0].threshold), default=None)
    return None if best is None else best[0]


def _expecting_as_many(figures: NoisyFigures, points: Sequence[OperatingPoint]) -> OperatingPoint | None:
    """The point at which the model expects as many records of each class as there are; None if that is at 0.5."""
    from scipy.optimize import root_scalar

    place = figures.classes.index(points[0].positive)
    score = scores(figures.table.edges, place)
    held = np.broadcast_to(np.array(figures.table.edges[1:]) > 0.5, figures.counts.shape)  # the others are pure noise
    true = (np.arange(2) == place)[:, None, None]
    counts = np.where(held, figures.counts, 0)

    def excess(moved: float) -> float:
        """The expected number of records of the class minus their number in the table."""
        return float((counts * (_shift_log_odds(score, moved) - true)).sum())

    drawn = float((np.maximum(counts, 0) * score * (1 - score)).sum())
    noise = figures.table.variance * float((held * (score - true) ** 2).sum())
    if abs(excess(0.0)) <= DEVIATIONS * math.sqrt(drawn + noise) or excess(-_MOST) * excess(_MOST) >= 0:
        return None
    moved = float(root_scalar(excess, bracket=(-_MOST, _MOST)).root)
    best = min(points, key=lambda one: abs(one.offsets(figures.classes)[place] - moved))
    return None if best.threshold == 0.5 else best


def _shift_log_odds(score: np.ndarray, by: float) -> np.ndarray:
    """Scores with shifted log odds."""
    odds = score / (1 - score) * math.exp(by)
    return odds / (1 + odds)


def estimate_shares(figures: NoisyFigures) -> dict[str, float] | None:
    """The estimated share of each class among the records; None if the noise leaves nothing of a class."""
    rows = figures.counts.sum((1, 2)).astype(float)
    cells = figures.table.cells // len(rows)
    if not all(figures.is_measurable(float(one), cells) for one in rows):
        return None
    shares = rows / rows.sum()
    return dict(zip(figures.classes, np.asarray(shares).tolist(), strict=True))
