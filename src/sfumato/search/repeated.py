"""Repeating a training with different keys: median, spread, and the joint cost of the runs."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from sfumato import averaging
from sfumato._checks import positive_integer
from sfumato.observers.notebook import shown
from sfumato.observers.progress import Progress
from sfumato.privacy import PrivacyPlan
from sfumato.privacy.statements.presented import rounded_up
from sfumato.privacy.unit import Adjacency
from sfumato.report import Evaluation, figure_of
from sfumato.runs import directory as names
from sfumato.runs.directory import RunDirectory
from sfumato.runs.owner import composition, uses
from sfumato.runs.owner.known import Data
from sfumato.runs.run import Run
from sfumato.search.trial import of_trials
from sfumato.training.conclusion.run_page import evaluation_of
from sfumato.training.preparation.trial import AnyTrial, Observers
from sfumato.training.run import PublicRun


@dataclass(frozen=True, kw_only=True)
class Repeated:
    """The results of a repeated training.

    Args:
        runs: the runs in order.
        standing: the number of private runs on these data in the directory, including those of earlier calls.
        epsilon, delta: the joint cost of those runs, had they been planned in advance; None, like all of the following,
            if the runs have no plan and promise nothing.
        epsilon_of_all_uses: the cost including the owner's other known runs on these data.
        adjacency, adjacency_of_all_uses: the adjacencies for which these figures hold.
    """

    runs: tuple[Run, ...] | tuple[PublicRun, ...]
    standing: int = 0
    epsilon: float | None = None
    delta: float | None = None
    epsilon_of_all_uses: float | None = None
    adjacency: Adjacency | None = None
    adjacency_of_all_uses: Adjacency | None = None

    @property
    def promises(self) -> bool:
        """Whether the runs promise anything: seeded runs do not."""
        return all(isinstance(run, Run) and run.statement.promises for run in self.runs)

    @property
    def open(self) -> bool:
        """Whether the measured figures may be shown to others."""
        return all(run.open for run in self.runs)

    @property
    def figure(self) -> str:
        """The name of the main figure: accuracy, or recall for embeddings."""
        return figure_of(self.runs[0].figures)

    def __repr__(self) -> str:
        found = f"{len(self.runs)} runs"
        if self.open:
            found += f", median {self.figure} {self.median:.1%}, standard deviation {self.spread:.1%}"
        if self.epsilon is None:
            return f"Repeated({found}; promises nothing)"
        planned = "" if self.promises else "seeded, promises nothing; their plans "
        return f"Repeated({found}; {planned}together epsilon {rounded_up(self.epsilon)} at delta {self.delta!r})"

    @property
    def accuracies(self) -> list[float]:
        """The test accuracy of each run: private unless the data are public."""
        return [run.accuracy for run in self.runs]

    @property
    def values(self) -> list[float]:
        """The main figure of each run: accuracy, or recall at the chosen false accept rate."""
        return [run.figures[self.figure] for run in self.runs]

    @property
    def median(self) -> float:
        """The median of the values."""
        return statistics.median(self.values)

    @property
    def mean(self) -> float:
        """The mean of the values."""
        return statistics.mean(self.values)

    @property
    def spread(self) -> float:
        """The standard deviation of the values; 0 for a single run."""
        return statistics.stdev(self.values) if len(self.runs) > 1 else 0.0

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95% prediction interval for the value of another run (`averaging.interval`); None for a single run."""
        if len(self.runs) < 2:
            return None
        found = averaging.interval(torch.tensor(self.values, dtype=torch.float64))
        return max(0.0, float(found.low)), min(1.0, float(found.high))

    @property
    def averages(self) -> list[tuple[str, float, float, float]]:
        """For the last weights and their averages: name, mean accuracy, its standard deviation over the runs, and the
        mean standard deviation over each run's last steps; empty if a run kept no weights.

        Measured on up to 1,000 test records, and as private as the accuracies.
        """
        found = [evaluation_of(RunDirectory(run.directory)) for run in self.runs]
        kept = [one.over_steps.rows for one in found if isinstance(one, Evaluation) and one.over_steps]
        if len(kept) < len(self.runs):
            return []
        return [
            (
                rows[0][0],
                statistics.mean(share for _, share, _ in rows),
                statistics.stdev(share for _, share, _ in rows) if len(rows) > 1 else 0.0,
                statistics.mean(deviation for *_, deviation in rows),
            )
            for rows in zip(*kept, strict=True)
        ]

    @property
    def top5(self) -> float | None:
        """The median top-5 accuracy; None with five classes or fewer."""
        known = [run.top5 for run in self.runs if run.top5 is not None]
        return statistics.median(known) if known else None


@of_trials
def seeds(
    trial: AnyTrial,
    seeds: int,
    *,
    directory: str | os.PathLike[str],
    observers: Observers | Callable[..., Any] | None = None,
    progress: Progress | None = None,
) -> Repeated:
    """Train, resume or read the runs `directory`/1, `directory`/2, ...

    Args:
        trial: the training, of a classifier or an embedding. If it has a seed, this is the first run's; the following
            runs count up from it.
        seeds: the number of runs.
        directory: the directory of the runs.
        observers: further observers of each run.
        progress: where to report progress.

    **Guarantee.** Seeded runs have none. Otherwise each run has its own plan's (epsilon, delta), for the plan's unit
    and adjacency, if it alone is shown. All of them together have the result's, by composition, if they were planned in
    advance (`together`). The choice of the best run is made without noise and is not covered.
    """
    count = positive_integer("seeds", seeds, remedy="give the number of runs, such as 5")
    progress = shown(progress)
    trial.refuse_figures()
    base, first, found = Path(directory), trial.experiment.seed, []
    for number in range(1, count + 1):
        one = replace(trial.experiment, seed=None if first is None else first + number - 1)
        run = replace(trial, experiment=one).trained(base / str(number), progress, observers=observers)
        done = " (trained before)" if run.seconds == 0 else ""
        found.append(run)
        progress.report(f"run {number} of {count}: {run.measured[0][0]} {Repeated(runs=(run,)).mean:.2%}{done}")
    if not isinstance(found[0], Run):
        return Repeated(runs=tuple(found))
    plans = _plans(base, RunDirectory(found[0].directory).read_json(names.SETTINGS)["data"]["fingerprint"])
    cost = cost_of(plans, known_uses(found[0]))
    return Repeated(runs=tuple(found), standing=len(plans), epsilon=cost.pop("epsilon_of_all"), **cost)


def cost_of(plans: Sequence[PrivacyPlan], known: Sequence[composition.Use]) -> dict[str, Any]:
    """The joint cost of runs with these plans, alone and with the owner's other known runs on these data."""
    (epsilon, delta), adjacency = composition.together(plans), composition.adjacency_of(plans)
    more = len(known) > len(plans)
    return {
        "epsilon_of_all": epsilon,
        "delta": delta,
        "epsilon_of_all_uses": max(epsilon, composition.together(known)[0]) if more else epsilon,
        "adjacency": adjacency,
        "adjacency_of_all_uses": composition.adjacency_of(known) if more else adjacency,
    }


def known_uses(run: Run) -> list[composition.Use]:
    """The owner's known runs on this run's data, including this run; empty for public data."""
    if run.statement.circumstances.data_public:
        return []
    record = RunDirectory(run.directory).read_json(names.SETTINGS)
    return [
        use
        for use in uses.earlier(Data.recorded(record)).plans
        if composition.unit_of(use) == run.statement.plan.unit.name
    ]


def _plans(base: Path, fingerprint: str) -> Sequence[PrivacyPlan]:
    """The plans of all private runs on these data in the directory."""
    runs = [RunDirectory(path) for path in sorted(base.iterdir())]
    return [
        PrivacyPlan.from_dict(run.read_json(names.PLAN))
        for run in runs
        if run.exists
        and (run / names.PLAN).is_file()
        and run.read_json(names.SETTINGS)["data"]["fingerprint"] == fingerprint
    ]
