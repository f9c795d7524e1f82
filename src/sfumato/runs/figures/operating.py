"""The operating point of a model of two classes: the score from which on it predicts one of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from sfumato._checks import SfumatoError, fraction

SHARES, BALANCED, NONE = "shares", "balanced", "none"
RULES = (SHARES, BALANCED, NONE)


@dataclass(frozen=True, kw_only=True)
class OperatingPoint:
    """A threshold for the score of one of two classes, as the model gives it at its temperature.

    Args:
        positive: the class that is predicted for scores of at least the threshold.
        threshold: strictly between 0 and 1.
        rule: the rule by which it was chosen: "shares", "balanced", or CLASS=SHARE (see
            `point_choice.choose_operating_point`).
    """

    positive: str
    threshold: float
    rule: str

    def __post_init__(self) -> None:
        fraction("threshold", self.threshold)

    def offsets(self, classes: Sequence[str]) -> tuple[float, ...]:
        """The numbers to add to softmax logits (N, 2) so that the larger logit is that of the predicted class. This
        moves the threshold to a score of one half.

        >>> OperatingPoint(positive="b", threshold=0.8, rule="balanced").offsets(("a", "b"))  # log(0.2 / 0.8)
        (0.0, -1.3862943611198908)
        """
        moved = math.log1p(-self.threshold) - math.log(self.threshold)
        return tuple(moved if name == self.positive else 0.0 for name in classes)

    def predicted_cells(self, classes: Sequence[str], edges: Sequence[float]) -> np.ndarray:
        """The cells of a noisy table that are predicted as the class, bool (2, bins), by prediction and confidence.

        The threshold is the edge of a bin, or one minus an edge, so that it divides no cell. The likelier of two
        classes has a score of at least one half, so cells below are empty, and keep their prediction.
        """
        place = tuple(classes).index(self.positive)
        low, high = np.array(edges[:-1]), np.array(edges[1:])
        least = np.stack([low if one == place else 1 - high for one in range(2)])
        own = np.arange(2)[:, None] == place
        return np.where(high > 0.5, least >= self.threshold - 1e-9, own)

    def bins(self, classes: Sequence[str], edges: Sequence[float]) -> list[tuple[float, float, np.ndarray]]:
        """(lower, upper, cell) for each cell that may hold records, ascending: the confidence in the predicted class
        after the threshold is moved to one half, and the cell as bool (2, bins)."""
        place, moved = tuple(classes).index(self.positive), sum(self.offsets(classes))
        taken, found = self.predicted_cells(classes, edges), []
        for one, bin_ in np.argwhere(np.broadcast_to(np.array(edges[1:]) > 0.5, taken.shape)).tolist():
            ends = [max(0.5, edge) if one == place else 1 - max(0.5, edge) for edge in edges[bin_ : bin_ + 2]]
            own = [_shift_log_odds(end, moved) if taken[one, bin_] else 1 - _shift_log_odds(end, moved) for end in ends]
            cell = np.zeros(taken.shape, bool)
            cell[one, bin_] = True
            found.append((min(own), max(own), cell))
        return sorted(found, key=lambda one: one[:2])

    def to_dict(self) -> dict[str, Any]:
        """The operating point as plain data for `from_dict`."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> OperatingPoint:
        """The operating point that `to_dict` wrote."""
        try:
            return cls(**data)
        except TypeError:
            raise SfumatoError(
                "an operating point has missing or unknown fields", "restore the run's own record"
            ) from None


def scores(edges: Sequence[float], place: int) -> np.ndarray:
    """The score of one of two classes at the middle of each cell, (2, bins), by prediction and confidence.

    >>> scores((0.5, 0.9, 1.0), 1).round(2).tolist()
    [[0.3, 0.05], [0.7, 0.95]]
    """
    middle = (np.maximum(edges[:-1], 0.5) + np.maximum(edges[1:], 0.5)) / 2
    return np.stack([middle if one == place else 1 - middle for one in range(2)])


def thresholds(edges: Sequence[float]) -> tuple[float, ...]:
    """The thresholds that divide no cell of a table with these bins of confidence, ascending.

    >>> thresholds((0.0, 0.5, 0.9, 1.0))
    (0.1, 0.5, 0.9)
    """
    upper = [edge for edge in edges if 0.5 <= edge < 1]
    return tuple(sorted({*upper, *(round(1 - edge, 12) for edge in upper), 0.5}))


def _shift_log_odds(score: float, by: float) -> float:
    """A score with shifted log odds.

    >>> round(_shift_log_odds(0.8, -math.log(4)), 12)
    0.5
    """
    return score / (score + (1 - score) * math.exp(-by))
