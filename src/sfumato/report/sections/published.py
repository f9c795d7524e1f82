"""Figures from noisy counts, with intervals that include the noise. They are post-processing and cost no privacy.

A value belongs to the interval of a share if a statistic whose mean is zero at the right value lies within 1.96
standard deviations of zero. The standard deviation includes the sampling of the records and the noise (Wilson 1927 for
shares, Fieller 1954 for the noise in the denominator).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from sfumato.privacy import NoisyTable

Z = 1.959964
GRID = np.linspace(0.0, 1.0, 4001)
FEWEST_DEVIATIONS = 4.0
"""A count of records must exceed this many standard deviations of its noise, or neither it nor a share is reported."""


class Estimate(NamedTuple):
    """A figure and its 95% interval. If the noise leaves nothing of the figure, it is None, and the interval is the
    whole range."""

    value: float | None
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class NoisyFigures:
    """The figures of a model from noisy counts.

    Args:
        table: what was counted, and with which noise.
        counts: int64, in the table's shape, as released.
        classes: the names of the classes.
    """

    table: NoisyTable
    counts: np.ndarray
    classes: tuple[str, ...]

    @property
    def records(self) -> Estimate:
        """The estimated number of records that were counted."""
        spread = Z * math.sqrt(self.table.cells * self.table.variance)
        found = float(self.counts.sum())
        return Estimate(found, max(0.0, found - spread), found + spread)

    @property
    def accuracy(self) -> Estimate:
        """The share of correctly classified records."""
        return self._share(slice(None))

    @cached_property
    def per_class(self) -> dict[str, Estimate]:
        """The recall (sensitivity) of each class."""
        return {name: self._share(slice(place, place + 1)) for place, name in enumerate(self.classes)}

    @property
    def majority(self) -> float | None:
        """The estimated share of the most frequent class: the accuracy of always predicting it. None if no records."""
        found = self.counts.sum(1)
        known = self._is_measurable(float(found.sum()), self.table.cells)
        return min(1.0, float(found.max() / found.sum())) if known else None

    def _is_measurable(self, count: float, cells: int) -> bool:
        """Whether a sum over `cells` noisy counts stands out from its noise."""
        return count > FEWEST_DEVIATIONS * math.sqrt(cells * self.table.variance) and count >= 1

    def _share(self, rows: slice) -> Estimate:
        """The share of hits H among hits and misses M of some classes.

        For the right share a, H (1 - a) - M a has mean zero and variance N a (1 - a) + v (h (1 - a)^2 + m a^2), with
        N = H + M, and h and m cells with noise of variance v. The interval is widened by one step of the grid.
        """
        classes, predictions = self.table.shape
        place = np.arange(classes) if classes == predictions else np.ones(classes, int)
        right, counts = (place[:, None] == np.arange(predictions))[rows], self.counts[rows]
        hit, miss = float(counts[right].sum()), float(counts[~right].sum())
        if not self._is_measurable(hit + miss, counts.size):
            return Estimate(None, 0.0, 1.0)
        # A sum that noise made negative counts as zero, or no share would be left in the interval.
        hit, miss = max(0.0, hit), max(0.0, miss)
        total = hit + miss
        noise = self.table.variance * (right.sum() * (1 - GRID) ** 2 + (~right).sum() * GRID**2)
        kept = GRID[(hit - GRID * total) ** 2 <= Z**2 * (total * GRID * (1 - GRID) + noise)]
        value, step = hit / total, float(GRID[1])
        low, high = (float(kept.min()), float(kept.max())) if len(kept) else (value, value)
        return Estimate(value, max(0.0, min(low - step, value)), min(1.0, max(high + step, value)))
