"""Repeated training with several keys or budgets: median and spread or the curve of accuracy, and the joint cost."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from sfumato import averaging
from sfumato._checks import SfumatoError, positive, positive_integer
from sfumato._files import write
from sfumato.observers.progress import Progress, default_progress
from sfumato.privacy import PrivacyPlan
from sfumato.privacy.statements.display import ceiling, rounded_up
from sfumato.privacy.unit import Adjacency
from sfumato.report import Evaluation, curve_of_budgets, figure_of
from sfumato.runs import directory as names
from sfumato.runs.directory import RunDirectory
from sfumato.runs.owner import uses
from sfumato.runs.owner.budgets import adjacency_of, joint_cost
from sfumato.runs.owner.lines import DataIdentity
from sfumato.runs.run import Run
from sfumato.search.trial import restore_threads
from sfumato.training import pretraining
from sfumato.training.conclusion.run_report import evaluation_of
from sfumato.training.job import PrivateJob
from sfumato.training.preparation.trial import AnyTrial, Observers
from sfumato.training.run import PublicRun, uses_so_far

PLOT, FILE = "budgets.svg", "budgets.json"
PUBLIC = "without-privacy"


@dataclass(frozen=True, kw_only=True)
class Repeated:
    """The results of repeated training.

    Args:
        runs: the runs in their order, by ascending budget; empty after a dry run.
        rows: the runs as plain data; after a dry run, the planned ones.
        budgets: the epsilons of the runs; empty if the runs differ in their keys.
        without_privacy: the accuracy of the same model trained without privacy, for several budgets on public data.
        is_public: whether the results may be shown to others.
        promises: whether the runs promise anything. Seeded runs do not; the figures are then those of their plans.
        stored_runs: the number of private runs on these data in the directory, including those of earlier calls.
        epsilon_of_all, delta: the joint cost of all runs in the directory, had they been planned in advance. These and
            the following are None if the runs have no plan.
        epsilon_of_all_uses: the joint cost, including all other known runs of the owner on these data.
        adjacency, adjacency_of_all_uses: the adjacencies for which these figures hold.
    """

    runs: tuple[Run, ...] | tuple[PublicRun, ...] = ()
    rows: tuple[dict[str, Any], ...] = ()
    budgets: tuple[float, ...] = ()
    without_privacy: float | None = None
    is_public: bool = False
    promises: bool = False
    stored_runs: int = 0
    epsilon_of_all: float | None = None
    delta: float | None = None
    epsilon_of_all_uses: float | None = None
    adjacency: Adjacency | None = None
    adjacency_of_all_uses: Adjacency | None = None

    @property
    def figure(self) -> str:
        """The name of the main figure: accuracy, or recall for embeddings."""
        return figure_of(self.runs[0].figures)

    def __repr__(self) -> str:
        found = f"{len(self.runs)} runs"
        if self.budgets:
            reached = [f": {value:.1%}" if self.is_public else "" for value in self.values] or [""] * len(self.budgets)
            found = ", ".join(
                f"epsilon {budget:g}{figure}" for budget, figure in zip(self.budgets, reached, strict=True)
            )
        elif self.is_public:
            found += f", median {self.figure} {self.median:.1%}, standard deviation {self.spread:.1%}"
        if self.epsilon_of_all is None:
            return f"Repeated({found}; no guarantee)"
        planned = "" if self.promises else "seeded, no guarantee; their plans "
        epsilon = rounded_up(self.epsilon_of_all)
        return f"Repeated({found}; {planned}together epsilon {epsilon} at delta {self.delta!r})"

    @property
    def values(self) -> list[float]:
        """The accuracy or recall (at the chosen false accept rate) of each run. Private unless the data are public."""
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
    def averages(self) -> list[dict[str, Any]]:
        """For the last weights and for each average: its name, its mean accuracy, the standard deviation of accuracy
        over the runs, and the mean standard deviation over each run's last steps. Empty if a run kept no weights.

        These are measured on up to 1,000 test records, and are as private as the accuracies.
        """
        found = [evaluation_of(RunDirectory(run.directory)) for run in self.runs]
        kept = [one.over_steps.rows for one in found if isinstance(one, Evaluation) and one.over_steps]
        if len(kept) < len(self.runs):
            return []
        return [
            {
                "weights": rows[0][0],
                "accuracy": statistics.mean(share for _, share, _ in rows),
                "deviation_over_runs": statistics.stdev(share for _, share, _ in rows) if len(rows) > 1 else 0.0,
                "deviation_over_steps": statistics.mean(deviation for *_, deviation in rows),
            }
            for rows in zip(*kept, strict=True)
        ]

    @property
    def top5(self) -> float | None:
        """The median top-5 accuracy; None with five classes or fewer."""
        known = [run.top5 for run in self.runs if run.top5 is not None]
        return statistics.median(known) if known else None

    def to_dict(self) -> dict[str, Any]:
        """Plain data: each run, the statistics over all runs, and their joint cost."""
        spread: dict[str, Any] = {"spread": self.spread, "values": self.values} if self.runs else {}
        if self.budgets:
            measured = {"budgets": list(self.budgets), "without_privacy": self.without_privacy}
        elif self.figure == "recall":
            measured = {"recall": self.mean, "far": self.runs[0].figures["far"], "interval": self.interval, **spread}
        else:
            measured = {"accuracy": self.median, "top5": self.top5, "averages": self.averages, **spread}
        others = ("runs", "rows", "budgets", "without_privacy", "stored_runs", "is_public")
        return {
            "rows": list(self.rows),
            **measured,
            "public": self.is_public,
            **{name: value for name, value in vars(self).items() if name not in others},
        }


@restore_threads
def repeat(
    trial: AnyTrial,
    *,
    directory: str | os.PathLike[str],
    seeds: int | None = None,
    epsilons: Sequence[float] | None = None,
    trial_for_epsilon: Callable[[float], AnyTrial] | None = None,
    dry_run: Callable[[PrivateJob, RunDirectory], dict[str, Any]] | None = None,
    observers: Observers | Callable[..., Any] | None = None,
    progress: Progress | None = None,
) -> Repeated:
    """Train, resume or read several runs: `directory`/1, /2, ...; with several budgets `directory`/epsilon-A, ...

    Args:
        trial: the training to repeat, of a classifier or an embedding. With several budgets it must be a classifier,
            and its own epsilon is ignored.
        directory: the directory of the runs; with several budgets also of budgets.json and budgets.svg.
        seeds: the number of runs, each with its own key. If the trial has a seed, the first run has this seed, and the
            others have the following ones.
        epsilons: two or more budgets, instead of `seeds`.
        trial_for_epsilon: makes the trial of one budget. Needed if the trials differ in more than
            epsilon, such as the rows of a recipe.
        dry_run: makes a row from each run's job. If given, nothing is trained or written.
        observers: further observers of each run.
        progress: where to report progress.

    **Guarantee.** None for seeded runs. Otherwise each run has the (epsilon, delta) of its own plan, for the plan's
    unit and adjacency, if only this run is shown. All runs together have the (epsilon, delta) of the result, by
    composition, if they were planned in advance (`budgets.joint_cost`). The best run is found without noise, and
    choosing it is not covered. A run without privacy is trained only if the data are public.
    """
    progress, base = default_progress(progress), Path(directory)
    if (seeds is None) == (epsilons is None):
        raise SfumatoError("`seeds` and `epsilons` are both or neither given", "give one of them")
    trial.refuse_figures()
    wanted = (
        _trials_by_seed(trial, seeds)
        if epsilons is None
        else _trials_by_epsilon(trial, epsilons, base, trial_for_epsilon)
    )
    budgets = () if epsilons is None else tuple(wanted)
    places = {own: base / (f"epsilon-{own:g}" if budgets else str(own)) for own in wanted}
    if dry_run is not None:
        return _dry_run(wanted, places, budgets, dry_run, progress)
    found: list[Any] = []
    for own, one in wanted.items():
        run = one.train(places[own], progress, observers=observers)
        done = " (trained before)" if run.seconds == 0 and not budgets else ""
        found.append(run)
        which, measured = f"epsilon {own:g}" if budgets else f"run {own} of {len(wanted)}", figure_of(run.figures)
        progress.report(f"{which}: {run.main_figures[0][0]} {run.figures[measured]:.2%}{done}")
    first = found[0]
    several = Repeated(
        runs=tuple(found), rows=tuple(map(_row, found)), budgets=budgets, is_public=all(run.is_public for run in found)
    )
    if not isinstance(first, Run):
        return several
    plans = _plans(base, RunDirectory(first.directory).read_json(names.SETTINGS)["data"]["fingerprint"])
    cost = {"stored_runs": len(plans), **cost_of(plans, known_uses(first))}
    several = replace(several, promises=all(run.statement.promises for run in found), **cost)
    if not budgets:
        return several
    if first.statement.circumstances.data_public:
        model = RunDirectory(first.directory).read_json(names.SETTINGS)["settings"]["model"]
        plain = pretraining.nonprivate_accuracy(trial, model, base / PUBLIC, progress)
        several = replace(several, without_privacy=plain)
    RunDirectory(base).write_json(FILE, several.to_dict(), private=True)
    write(base / PLOT, curve_of_budgets(several.rows, several.without_privacy).encode(), private=True)
    return several


def _dry_run(
    wanted: Mapping[float, AnyTrial],
    places: Mapping[float, Path],
    budgets: tuple[float, ...],
    row_of: Callable[[PrivateJob, RunDirectory], dict[str, Any]],
    progress: Progress,
) -> Repeated:
    """The planned runs and their joint cost."""
    rows, plans, others, public = [], [], [], False
    for own, one in wanted.items():
        run = RunDirectory(places[own])
        job = one.job(run, progress)
        rows.append(row_of(job, run))
        public = job.source.public
        if not plans:
            others = [use for use in uses_so_far(job).plans if use.unit.name == job.plan.unit.name]
        if not run.exists:  # a run that has begun is already among the owner's uses
            others.append(job.plan)
        plans.append(job.plan)
    promises = next(iter(wanted.values())).experiment.seed is None
    return Repeated(rows=tuple(rows), budgets=budgets, is_public=public, promises=promises, **cost_of(plans, others))


def _trials_by_seed(trial: AnyTrial, seeds: int | None) -> dict[float, AnyTrial]:
    """The trials by number, each with its own key."""
    count, first = positive_integer("seeds", seeds, remedy="give the number of runs, such as 5"), trial.experiment.seed
    own = {number: None if first is None else first + number - 1 for number in range(1, count + 1)}
    return {number: replace(trial, experiment=replace(trial.experiment, seed=seed)) for number, seed in own.items()}


def _trials_by_epsilon(
    trial: AnyTrial, epsilons: Sequence[float], base: Path, trial_for_epsilon: Callable[[float], AnyTrial] | None
) -> dict[float, AnyTrial]:
    """The trial of each budget, in ascending order. Refuses budgets that cannot be trained in this directory."""
    own = trial.experiment
    if own.noise_multiplier is not None:
        raise SfumatoError("several budgets and `noise_multiplier` are both given", "give one `epsilon` with it")
    wanted = sorted({positive("epsilon", value) for value in epsilons})
    named = ",".join(f"{value:g}" for value in epsilons)
    if len(wanted) < len(epsilons):
        raise SfumatoError(f"`epsilon={named}` names a budget twice", "name each once")
    if len(wanted) < 2:
        raise SfumatoError(f"`epsilon={named}` names no two budgets", "name several, or train a single run")
    _refuse_other(base, wanted)
    with_epsilon = trial_for_epsilon or (lambda epsilon: replace(trial, experiment=replace(own, epsilon=epsilon)))
    trials = {epsilon: with_epsilon(epsilon) for epsilon in wanted}
    for one in trials.values():  # before the first run spends anything
        one.refuse_early()
    return trials


def _refuse_other(base: Path, wanted: Sequence[float]) -> None:
    """Refuse a directory that holds a single run, or the results of budgets that are not wanted."""
    run = RunDirectory(base)
    if run.exists:
        raise SfumatoError(f"{base} holds a run", "give `directory` another directory for the runs of several budgets")
    if (base / FILE).exists():
        left = [f"{epsilon:g}" for epsilon in run.read_json(FILE).get("budgets", ()) if epsilon not in wanted]
        if left:
            raise SfumatoError(
                f"{base} also holds the curve of other budgets: {', '.join(left)}",
                "name them too, or give another `directory`",
            )


def _row(run: Run | PublicRun) -> dict[str, Any]:
    """A run as plain data."""
    figure = figure_of(run.figures)
    row = {figure: run.figures[figure], "top5": run.figures.get("top5"), "run": str(run.directory)}
    if not isinstance(run, Run):
        return row
    plan = run.statement.plan
    return {
        "epsilon": ceiling(run.statement.epsilon, 6),
        "noise_multiplier": plan.noise_multiplier,
        "steps": plan.steps,
        "batch_size": plan.expected_batch_size,
        **row,
    }


def cost_of(plans: Sequence[PrivacyPlan], known: Sequence[PrivacyPlan]) -> dict[str, Any]:
    """The joint cost of runs with these plans, alone and with the owner's other known runs on these data."""
    (epsilon, delta), adjacency = joint_cost(plans), adjacency_of(plans)
    more = len(known) > len(plans)
    return {
        "epsilon_of_all": epsilon,
        "delta": delta,
        "epsilon_of_all_uses": max(epsilon, joint_cost(known)[0]) if more else epsilon,
        "adjacency": adjacency,
        "adjacency_of_all_uses": adjacency_of(known) if more else adjacency,
    }


def known_uses(run: Run) -> list[PrivacyPlan]:
    """The owner's known runs on this run's data, including this run; empty for public data."""
    if run.statement.circumstances.data_public:
        return []
    record = RunDirectory(run.directory).read_json(names.SETTINGS)
    return [
        use
        for use in uses.earlier_uses(DataIdentity.from_record(record)).plans
        if use.unit.name == run.statement.plan.unit.name
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
