"""The results of a weight-noise study: accuracies with standard errors, convergence, and slow-downs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from sfumato.data import Source
from studies.weight_noise.course import TrainingCurve
from studies.weight_noise.design import Design

NO_PROMISE = (
    "Nothing here is private: networks were trained and measured without privacy, and the noise in their weights is no "
    "privacy mechanism."
)
PILOT = 0
"""The run number of all pilots. They choose a learning rate and are used for nothing else."""
PRIVATE = " The data are private, and no guarantee covers these figures."


@dataclass(frozen=True, kw_only=True)
class Cell:
    """The results of all runs of one form at one deviation.

    Args:
        model: the name of the form.
        deviation: sigma of its weights.
        learning_rate: the learning rate of the runs.
        accuracies: the final accuracy of each run on the test part, with drawn weights; 0 if it diverged.
        converged: the number of runs that converged, by the study's rule.
        epochs_to_share: the median number of epochs until the share of the noiseless accuracy; None if most runs never
            reached it, or if there is no noiseless result.
        slowdown: `epochs_to_share` divided by that of the noiseless runs.
        curve: (epochs, mean accuracy over the runs), on the part that the design uses for curves.
    """

    model: str
    deviation: float
    learning_rate: float
    accuracies: tuple[float, ...]
    converged: int
    epochs_to_share: float | None
    slowdown: float | None
    curve: tuple[tuple[float, float], ...]

    @property
    def converges(self) -> bool:
        """Whether most of its runs converged."""
        return 2 * self.converged > len(self.accuracies)

    @property
    def accuracy(self) -> float:
        """The mean accuracy over all runs, whether they converged or not."""
        return statistics.fmean(self.accuracies)

    @property
    def standard_error(self) -> float | None:
        """The standard error of the mean accuracy; None for a single run."""
        count = len(self.accuracies)
        return statistics.stdev(self.accuracies) / math.sqrt(count) if count > 1 else None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data."""
        figures = {"accuracy": self.accuracy, "standard_error": self.standard_error, "converges": self.converges}
        return {**asdict(self), **figures}


@dataclass(frozen=True, kw_only=True)
class NoiseStudy:
    """The results of a study.

    Args:
        design: the design as plain data.
        kind: the kind of the source.
        public: whether its records are public.
        test_examples: the number of test examples.
        largest_class: the share of the largest class in the part used for curves, which is the accuracy of a constant
            prediction.
        cells: the cell of each form and deviation, in the order of the forms.
        pilots: the model, deviation, learning rate and accuracy of each pilot run.
    """

    design: Mapping[str, Any]
    kind: str
    public: bool
    test_examples: int
    largest_class: float
    cells: tuple[Cell, ...]
    pilots: tuple[Mapping[str, Any], ...] = ()

    def __repr__(self) -> str:
        converged = sum(cell.converges for cell in self.cells)
        return f"NoiseStudy({self.kind}: {len(self.cells)} cells, of which {converged} converge; nothing is private)"

    def cell(self, model: str, deviation: float) -> Cell:
        """The cell of one form and deviation."""
        return next(one for one in self.cells if (one.model, one.deviation) == (model, deviation))

    @property
    def statement(self) -> str:
        """The statement that must accompany the figures."""
        return NO_PROMISE + ("" if self.public else PRIVATE)

    @property
    def rule(self) -> str:
        """The rule of convergence in words."""
        level = self.largest_class + self.design["margin"]
        points = 100 * self.design["margin"]
        return (
            f"No convergence: most of the runs never exceed {level:.1%}, which is {points:g} percentage points "
            f"above the share of the largest class ({self.largest_class:.1%})."
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data."""
        return {
            "epsilon": None,
            "statement": self.statement,
            "source": self.kind,
            "public": self.public,
            "design": dict(self.design),
            "rule": self.rule,
            "largest_class": self.largest_class,
            "test_examples": self.test_examples,
            "cells": [cell.to_dict() for cell in self.cells],
            "pilots": [dict(pilot) for pilot in self.pilots],
        }


def row_of(course: TrainingCurve) -> dict[str, Any]:
    """A finished run as a line of the file. `last`, the last accuracy of its curve, is present if it was measured on a
    validation part."""
    return {
        "accuracy": course.accuracy,
        "points": [list(point) for point in course.points],
        "diverged": course.diverged,
        **({} if course.tested is None else {"last": course.last}),
    }


def make_cells(
    design: Design, rows: Sequence[Mapping[str, Any]], source: Source, rates: Mapping[str, float]
) -> NoiseStudy:
    """The results of all runs of the design.

    Args:
        rows: the lines of finished runs (`row_of`), with model, learning rate, deviation and number.
        rates: the learning rate of each form.
    """
    labels = (source.test if source.held_out is None else source.held_out).labels
    largest = float(np.bincount(labels).max() / len(labels))
    cells: list[Cell] = []
    for form in design.forms:
        runs = {
            deviation: [
                row
                for row in rows
                if (row["model"], row["learning_rate"], row["deviation"]) == (form, rates[form], deviation)
                and 1 <= row["run"] <= design.runs
            ]
            for deviation in design.deviations
        }
        level = None
        if 0.0 in runs:
            level = design.share * statistics.fmean(last_of(row) for row in runs[0.0])
            level = level if level > largest + design.margin else None
        noiseless = None if level is None else _median_reached(runs[0.0], level)
        for deviation, own in runs.items():
            reached = None if level is None else _median_reached(own, level)
            cells.append(
                Cell(
                    model=form,
                    deviation=deviation,
                    learning_rate=rates[form],
                    accuracies=tuple(row["accuracy"] for row in own),
                    converged=sum(_best(row) > largest + design.margin for row in own),
                    epochs_to_share=reached,
                    slowdown=None if reached is None or noiseless is None else reached / noiseless,
                    curve=_mean_curve(own),
                )
            )
    return NoiseStudy(
        design=asdict(design),
        kind=source.kind,
        public=source.public,
        test_examples=len(source.test),
        largest_class=largest,
        cells=tuple(cells),
        pilots=tuple(
            {name: row[name] for name in ("model", "deviation", "learning_rate", "accuracy")}
            for row in rows
            if row["run"] == PILOT
            and (row["model"] in design.forms)
            and (row["deviation"] in design.deviations)
            and (row["learning_rate"] in design.learning_rates)
        ),
    )


def last_of(row: Mapping[str, Any]) -> float:
    """The final accuracy of a run on the part used for curves."""
    return row.get("last", row["accuracy"])


def epochs_to_reach(points: Sequence[Sequence[float]], level: float) -> float:
    """The epochs until an accuracy was reached, by linear interpolation; infinite if it was never reached.

    >>> epochs_to_reach([(1, 0.2), (2, 0.6), (3, 0.5)], 0.4), epochs_to_reach([(1, 0.2), (2, 0.6)], 0.7)
    (1.5, inf)
    """
    before: Sequence[float] | None = None
    for epochs, accuracy in points:
        if accuracy >= level:
            if before is None:
                return float(epochs)
            return before[0] + (epochs - before[0]) * (level - before[1]) / (accuracy - before[1])
        before = (epochs, accuracy)
    return math.inf


def _median_reached(rows: Sequence[Mapping[str, Any]], level: float) -> float | None:
    median = statistics.median_high(epochs_to_reach(row["points"], level) for row in rows)
    return median if math.isfinite(median) else None


def _best(row: Mapping[str, Any]) -> float:
    return max((accuracy for _, accuracy in row["points"]), default=0.0)


def _mean_curve(rows: Sequence[Mapping[str, Any]]) -> tuple[tuple[float, float], ...]:
    """The mean curve over all runs, up to the end of the shortest. A run that diverged has no further points."""
    measured = zip(*(row["points"] for row in rows), strict=False)
    return tuple((points[0][0], statistics.fmean(accuracy for _, accuracy in points)) for points in measured)
