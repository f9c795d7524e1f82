"""Figures of a model from noisy counts, with intervals that include the noise. Post-processing: they cost no privacy.

Intervals are found by inverting tests: a value belongs to the interval if a statistic whose mean is zero at the right
value lies within 1.96 standard deviations of zero. The standard deviation includes the sampling of the records and the
noise (Wilson 1927 for shares, Fieller 1954 for the noise in the denominator). So all intervals include the noise in the
number of records.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from sfumato.privacy.noisy_table import NoisyTable
from sfumato.runs.figures.operating import OperatingPoint

Z = 1.959964
CONFIDENCE = 0.95
GRID = np.linspace(0.0, 1.0, 4001)
DRAWS = 4000
FEWEST_DEVIATIONS = 4.0
"""A count of records must exceed this many standard deviations of its noise, or neither it nor a share is reported."""


class Estimate(NamedTuple):
    """A figure and its 95% interval. If the noise leaves nothing of the figure, it is None, and the interval is the
    whole range."""

    value: float | None
    low: float
    high: float


class Band(NamedTuple):
    """Records with confidence between two values: their estimated number, and their accuracy."""

    low: float
    high: float
    records: float
    accuracy: Estimate


@dataclass(frozen=True, kw_only=True)
class NoisyFigures:
    """The figures of a model from noisy counts.

    Args:
        table: what was counted, and with which noise.
        counts: (classes, predictions, bins), as released; of several groups the sums over them.
        classes: the names of the classes.
        temperature: the temperature of the confidences.
        operating: the score threshold of two classes by which predictions are read from the same counts; None for the
            likeliest class.
        groups: the names of the groups that are counted apart, if any.
        group_counts: (groups, classes, predictions, bins), as released.
    """

    table: NoisyTable
    counts: np.ndarray
    classes: tuple[str, ...]
    temperature: float
    operating: OperatingPoint | None = None
    groups: tuple[str, ...] = ()
    group_counts: np.ndarray | None = None

    @cached_property
    def by_group(self) -> dict[str, NoisyFigures]:
        """The figures of each group, from its own counts."""
        if self.group_counts is None:
            return {}
        alone = replace(self, table=replace(self.table, groups=1), groups=(), group_counts=None)
        return {name: replace(alone, counts=own) for name, own in zip(self.groups, self.group_counts, strict=True)}

    @property
    def _variance(self) -> float:
        """The variance of the noise in one of `counts`."""
        return self.table.groups * self.table.variance

    @property
    def _cells(self) -> int:
        """The number of `counts`."""
        return self.counts.size

    @property
    def records(self) -> Estimate:
        """The estimated number of records in the test part."""
        spread = Z * math.sqrt(self._cells * self._variance)
        found = float(self.counts.sum())
        return Estimate(found, max(0.0, found - spread), found + spread)

    @property
    def correct_cells(self) -> np.ndarray:
        """The cells with correct predictions, bool (classes, predictions, bins)."""
        classes, predictions, bins = self.table.shape
        if self.operating is not None:
            return np.arange(classes)[:, None, None] == self.predicted_class
        place = np.arange(classes) if self.table.predictions else np.ones(classes, int)
        return np.broadcast_to((place[:, None] == np.arange(predictions))[:, :, None], (classes, predictions, bins))

    @property
    def predicted_class(self) -> np.ndarray:
        """The class predicted for the records of a cell, by prediction and confidence: (predictions, bins)."""
        _, predictions, bins = self.table.shape
        if self.operating is None:
            return np.broadcast_to(np.arange(predictions)[:, None], (predictions, bins))
        place = self.classes.index(self.operating.positive)
        return np.where(self.operating.predicted_cells(self.classes, self.table.edges), place, 1 - place)

    @property
    def accuracy(self) -> Estimate:
        """The share of correctly classified records."""
        return self._share_among(np.True_)

    @property
    def majority(self) -> float | None:
        """The estimated share of the most frequent class: the accuracy of always predicting it. None if no records."""
        found = self.counts.sum((1, 2))
        known = self.is_measurable(float(found.sum()), self._cells)
        return min(1.0, float(found.max() / found.sum())) if known else None

    @cached_property
    def per_class(self) -> dict[str, Estimate]:
        """The recall (sensitivity) of each class."""
        rows = np.arange(len(self.classes))[:, None, None]
        return {name: self._share_among(rows == place) for place, name in enumerate(self.classes)}

    @cached_property
    def precision(self) -> dict[str, Estimate]:
        """The precision of each class; empty if the table has no predictions."""
        if not self.table.predictions:
            return {}
        cells = np.broadcast_to(self.predicted_class, self.counts.shape)
        return {name: self._share_among(cells == place) for place, name in enumerate(self.classes)}

    @cached_property
    def auc(self) -> dict[str, Estimate]:
        """The area under the ROC curve of each class against all others; empty if the table has no predictions.

        Records are ranked by how much the model favours the class: first those predicted as other classes, by falling
        confidence, then those predicted as the class, by rising confidence. Records in the same bin are ties.
        """
        if not self.table.predictions or len(self.classes) < 2:
            return {}
        return {name: self._auc(*self._ranked(place)) for place, name in enumerate(self.classes)}

    @property
    def mean_auc(self) -> Estimate:
        """The mean of the areas of all classes; unknown if one of them is. Its interval has the mean width of theirs:
        no less than its own, since a standard deviation of a mean is at most the mean of the standard deviations."""
        areas = np.array([(np.nan if one.value is None else one.value, *one[1:]) for one in self.auc.values()])
        if not len(areas) or np.isnan(areas).any():
            return Estimate(None, 0.0, 1.0)
        return Estimate(*areas.mean(0).tolist())

    def roc(self, name: str) -> list[tuple[float, float]]:
        """(false-positive rate, true-positive rate) of a class against all others at each threshold, ascending."""
        own, others, *_ = self._ranked(self.classes.index(name))
        rates = []
        for counts in (others, own):
            shares = np.cumsum(counts[::-1]) / max(1.0, counts.sum())
            rates.append(np.concatenate([[0.0], np.maximum.accumulate(np.clip(shares, 0.0, 1.0))]))
        points = [(float(one), float(two)) for one, two in zip(*rates, strict=True)]
        return [*points, (1.0, 1.0)] if points[-1] != (1.0, 1.0) else points

    @cached_property
    def reliability(self) -> list[Band]:
        """Accuracy by confidence."""
        return [
            Band(low, high, float(self.counts[:, cells].sum()), self._share_among(cells))
            for low, high, cells in self._bins
        ]

    @property
    def _bins(self) -> list[tuple[float, float, np.ndarray]]:
        """The lower and upper confidence in the predicted class, and the cells of that bin, (predictions, bins)."""
        edges, (_, predictions, bins) = self.table.edges, self.table.shape
        if self.operating is None:
            every = np.arange(bins) == np.arange(bins)[:, None, None]
            return list(zip(edges[:-1], edges[1:], np.broadcast_to(every, (bins, predictions, bins)), strict=True))
        return self.operating.bins(self.classes, edges)

    @cached_property
    def calibration_error(self) -> Estimate:
        """Expected calibration error (`calibration_error`), with each bin's middle as its confidence."""
        found = self.records
        if not self.is_measurable(found.value or 0.0, self._cells):
            return Estimate(None, 0.0, 1.0)
        middle = np.array([(high + low) / 2 for low, high, _ in self._bins])
        good, bad = (
            np.stack([which & cells for *_, cells in self._bins]) for which in (self.correct_cells, ~self.correct_cells)
        )
        right, wrong = (np.where(which, self.counts, 0).sum((1, 2, 3)) for which in (good, bad))
        missed = right * (1 - middle) - wrong * middle
        noise = good.sum((1, 2, 3)) * (1 - middle) ** 2 + bad.sum((1, 2, 3)) * middle**2
        return calibration_error(missed, right, wrong, self._variance * noise, float(self.counts.sum()))

    def is_measurable(self, count: float, cells: float) -> bool:
        """Whether a sum over `cells` noisy counts stands out from its noise."""
        return count > FEWEST_DEVIATIONS * math.sqrt(cells * self._variance) and count >= 1

    def _share_among(self, cells: np.ndarray | np.bool) -> Estimate:
        """The share of hits H among hits and misses M in some cells.

        For the right share a, H (1 - a) - M a has mean zero and variance N a (1 - a) + v (h (1 - a)^2 + m a^2), with
        N = H + M, and h and m cells with noise of variance v.
        """
        hits, misses = self.correct_cells & cells, ~self.correct_cells & cells
        hit, miss = float(self.counts[hits].sum()), float(self.counts[misses].sum())
        one, other = int(hits.sum()), int(misses.sum())
        if not self.is_measurable(hit + miss, one + other):
            return Estimate(None, 0.0, 1.0)
        # A sum that noise made negative counts as zero, or no share would be left in the interval.
        hit, miss = max(0.0, hit), max(0.0, miss)
        total = hit + miss
        noise = self._variance * (one * (1 - GRID) ** 2 + other * GRID**2)
        return _inverted(hit / total, hit - GRID * total, total * GRID * (1 - GRID) + noise)

    def _ranked(self, place: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Counts of a class and of all others, ranked by how much the model favours the class, ascending; and the
        number of cells in each."""
        own = np.arange(len(self.classes)) == place

        def ranked(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            counts = self.counts[rows]
            taken, others = counts[:, own].sum((0, 1)), counts[:, ~own].sum((0, 1))
            bins, records = len(taken), int(rows.sum())
            cells = np.repeat([records * (len(own) - 1), records], bins)
            return np.concatenate([others[::-1], taken]).astype(float), cells.astype(float)

        (one, of_one), (other, of_other) = ranked(own), ranked(~own)
        return one, other, of_one, of_other

    def _auc(self, own: np.ndarray, others: np.ndarray, own_cells: np.ndarray, other_cells: np.ndarray) -> Estimate:
        """The area under the curve. Let h = 1, 1/2 or 0 if the first of a pair ranks above, equal to or below the
        second. For the right area theta, the sum over pairs of h - theta has mean zero. Its variance is that of a
        product of independent counts, each with the variance of a Poisson count plus that of its noise (DeLong et al.
        1988 without the noise)."""
        first, second = own.sum(), others.sum()
        if not (self.is_measurable(first, own_cells.sum()) and self.is_measurable(second, other_cells.sum())):
            return Estimate(None, 0.0, 1.0)
        ranks = np.arange(len(own))
        above = 0.5 * (1 + np.sign(ranks[:, None] - ranks[None, :]))
        one, other = (
            np.maximum(counts, 0) + self._variance * cells
            for counts, cells in ((own, own_cells), (others, other_cells))
        )
        by_own = (above @ others)[:, None] - second * GRID
        by_others = (own @ above)[:, None] - first * GRID
        pairs = one @ above**2 @ other - 2 * GRID * (one @ above @ other) + GRID**2 * one.sum() * other.sum()
        found = min(max(0.0, own @ above @ others), first * second)  # clamped, since noise may leave the range
        return _inverted(
            float(found / (first * second)),
            found - GRID * first * second,
            one @ by_own**2 + other @ by_others**2 + pairs,
        )


def calibration_error(
    missed: np.ndarray, right: np.ndarray, wrong: np.ndarray, noise: np.ndarray, total: float
) -> Estimate:
    """Expected calibration error, the mean over records of their bin's |confidence - accuracy|, with its interval.

    Noise and sampling inflate the observed error, a small one more than a large one. The value is the error that would
    be observed at this size on average, if the true difference of each bin is the same fraction of the observed one.
    The half width of the interval is the 95th percentile of the inflation, from Monte Carlo draws. It holds for any
    true error, since |d + e| is within |e| of |d|, and is wider than necessary.

    Args:
        missed: for each bin the sum over its records of 1 if the prediction is right, minus confidence.
        right, wrong: the number of right and of wrong predictions in each bin.
        noise: the variance of the noise in each of `missed`.
        total: the number of records.
    """
    from scipy.optimize import root_scalar

    share = np.clip(right / np.maximum(right + wrong, 1), 0.01, 0.99)
    deviations = np.sqrt(np.maximum(right + wrong, 0) * share * (1 - share) + noise)
    added = (_sizes_of_draws(len(missed)) * deviations).sum(1)
    plain, most = float(np.abs(missed).sum()) / total, float(np.quantile(added, CONFIDENCE)) / total

    def beyond(part: float) -> float:
        return float(_mean_size(part * missed, deviations).sum()) / total - plain

    bracketed = beyond(0.0) < 0 < beyond(1.0)
    part = float(root_scalar(beyond, bracket=(0.0, 1.0)).root if bracketed else beyond(0.0) < 0)
    return Estimate(part * plain, max(0.0, plain - most), min(1.0, plain + most))


@lru_cache(maxsize=4)
def _sizes_of_draws(bins: int) -> np.ndarray:
    """Absolute values of standard normal draws, always the same ones: (DRAWS, bins)."""
    found = np.abs(np.random.default_rng(0).normal(size=(DRAWS, bins)))
    found.flags.writeable = False  # the cached array is shared
    return found


def _inverted(value: float, statistic: np.ndarray, variance: np.ndarray) -> Estimate:
    """The grid values that the test does not reject, widened by one step at either end."""
    kept = GRID[statistic**2 <= Z**2 * variance]
    value = min(1.0, max(0.0, value))
    step = float(GRID[1])
    low, high = (float(kept.min()), float(kept.max())) if len(kept) else (value, value)
    return Estimate(value, max(0.0, min(low - step, value)), min(1.0, max(high + step, value)))


def _mean_size(means: np.ndarray, deviations: np.ndarray) -> np.ndarray:
    """E|x| of normal variables (folded normal distribution)."""
    from scipy.special import erf

    ratio = means / np.maximum(deviations, np.finfo(float).tiny) / math.sqrt(2)
    return deviations * math.sqrt(2 / math.pi) * np.exp(-(ratio**2)) + means * erf(ratio)
