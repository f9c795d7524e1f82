"""One training several times, by keys or for budgets of its own: median and spread, the curve, and what all cost."""

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
from sfumato.observers.notebook import shown
from sfumato.observers.progress import Progress
from sfumato.privacy import PrivacyPlan
from sfumato.privacy.statements.presented import ceiling, rounded_up
from sfumato.privacy.unit import Adjacency
from sfumato.report import Evaluation, curve_of_budgets, figure_of
from sfumato.runs import directory as names
from sfumato.runs.directory import RunDirectory
from sfumato.runs.owner import composition, uses
from sfumato.runs.owner.known import Data
from sfumato.runs.run import Run
from sfumato.search.trial import of_trials
from sfumato.training import pretraining
from sfumato.training.conclusion.run_page import evaluation_of
from sfumato.training.job import PrivateJob
from sfumato.training.preparation.trial import AnyTrial, Observers
from sfumato.training.run import PublicRun, earlier

PLOT, FILE = "budgets.svg", "budgets.json"
PUBLIC = "without-privacy"


@dataclass(frozen=True, kw_only=True)
class Repeated:
    """What came of one training, several times.

    Args:
        runs: in their order, budgets rising; none of a dry run.
        rows: the same as plain data; of a dry run what each would be.
        budgets: of runs that differ in epsilon; none of runs that differ in their keys.
        without_privacy: accuracy of the same model trained without any, of budgets where the data are public.
        open: whether what was measured may be shown to others.
        promises: whether the runs promise anything: those by seeds do not, and the figures are their plans'.
        standing: how many private runs on these data stand in the directory, also of earlier calls.
        epsilon_of_all, delta: of all that stand there together, had they been planned in advance; None, as all of the
            following, where the runs have no plan.
        epsilon_of_all_uses: with all others of the owner's on these data that are known.
        adjacency, adjacency_of_all_uses: what these figures hold for.
    """

    runs: tuple[Run, ...] | tuple[PublicRun, ...] = ()
    rows: tuple[dict[str, Any], ...] = ()
    budgets: tuple[float, ...] = ()
    without_privacy: float | None = None
    open: bool = False
    promises: bool = False
    standing: int = 0
    epsilon_of_all: float | None = None
    delta: float | None = None
    epsilon_of_all_uses: float | None = None
    adjacency: Adjacency | None = None
    adjacency_of_all_uses: Adjacency | None = None

    @property
    def figure(self) -> str:
        """The name of the one figure that matters most: accuracy, or recall of embeddings."""
        return figure_of(self.runs[0].figures)

    def __repr__(self) -> str:
        found = f"{len(self.runs)} runs"
        if self.budgets:
            reached = [f": {value:.1%}" if self.open else "" for value in self.values] or [""] * len(self.budgets)
            found = ", ".join(
                f"epsilon {budget:g}{figure}" for budget, figure in zip(self.budgets, reached, strict=True)
            )
        elif self.open:
            found += f", median {self.figure} {self.median:.1%}, standard deviation {self.spread:.1%}"
        if self.epsilon_of_all is None:
            return f"Repeated({found}; promises nothing)"
        planned = "" if self.promises else "seeded, promises nothing; their plans "
        epsilon = rounded_up(self.epsilon_of_all)
        return f"Repeated({found}; {planned}together epsilon {epsilon} at delta {self.delta!r})"

    @property
    def values(self) -> list[float]:
        """Accuracy of each run, or recall at the false accept rate that was chosen: private unless the data are not."""
        return [run.figures[self.figure] for run in self.runs]

    @property
    def median(self) -> float:
        """Of the values."""
        return statistics.median(self.values)

    @property
    def mean(self) -> float:
        """Of the values."""
        return statistics.mean(self.values)

    @property
    def spread(self) -> float:
        """Their standard deviation; 0 for a single run."""
        return statistics.stdev(self.values) if len(self.runs) > 1 else 0.0

    @property
    def interval(self) -> tuple[float, float] | None:
        """Where the value of a further run would lie in 95% of cases (`averaging.interval`); None of a single run."""
        if len(self.runs) < 2:
            return None
        found = averaging.interval(torch.tensor(self.values, dtype=torch.float64))
        return max(0.0, float(found.low)), min(1.0, float(found.high))

    @property
    def averages(self) -> list[dict[str, Any]]:
        """For the last weights and their averages: name, mean accuracy, its standard deviation over the runs, and the
        mean standard deviation over each run's last steps; empty if a run kept no weights.

        Measured on up to 1,000 test records, and as private as the accuracies.
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
        """Plain data: each run, what was measured of all of them, and what they cost together."""
        spread: dict[str, Any] = {"spread": self.spread, "values": self.values} if self.runs else {}
        if self.budgets:
            measured = {"budgets": list(self.budgets), "without_privacy": self.without_privacy}
        elif self.figure == "recall":
            measured = {"recall": self.mean, "far": self.runs[0].figures["far"], "interval": self.interval, **spread}
        else:
            measured = {"accuracy": self.median, "top5": self.top5, "averages": self.averages, **spread}
        others = ("runs", "rows", "budgets", "without_privacy", "standing", "open")
        return {
            "rows": list(self.rows),
            **measured,
            "public": self.open,
            **{name: value for name, value in vars(self).items() if name not in others},
        }


@of_trials
def repeat(
    trial: AnyTrial,
    *,
    directory: str | os.PathLike[str],
    seeds: int | None = None,
    epsilons: Sequence[float] | None = None,
    of_budget: Callable[[float], AnyTrial] | None = None,
    foreseen: Callable[[PrivateJob, RunDirectory], dict[str, Any]] | None = None,
    observers: Observers | Callable[..., Any] | None = None,
    progress: Progress | None = None,
) -> Repeated:
    """Train, resume or read several runs: `directory`/1, /2, ... or, of budgets, `directory`/epsilon-A, ...

    Args:
        trial: what is trained, a classifier or an embedding; of budgets a classifier, whatever its own epsilon.
        directory: where the runs are; of budgets with budgets.json and budgets.svg.
        seeds: how many runs, each with a key of its own; a seed of the trial's is the first one's, and the others count
            on from it.
        epsilons: in place of it the budgets, two or more.
        of_budget: the trial of one budget, where they differ in more than epsilon, as the rows of a recipe do.
        foreseen: makes a row of each run's job; then nothing is spent, and nothing is written.
        observers: further ones of each run.
        progress: where to report to.

    **Guarantee.** Runs by seeds have none. Else each run has its own plan's (epsilon, delta), for the plan's unit and
    adjacency, where it alone is shown; all of them together have the result's, by composition, if they were planned in
    advance (`composition.together`). Which of them is best is measured without noise, and that choice is not covered. A
    run without privacy is trained only where the data are public.
    """
    progress, base = shown(progress), Path(directory)
    if (seeds is None) == (epsilons is None):
        raise SfumatoError("`seeds` and `epsilons` are both or neither given", "give one of them")
    trial.refuse_figures()
    wanted = _by_key(trial, seeds) if epsilons is None else _by_budget(trial, epsilons, base, of_budget)
    budgets = () if epsilons is None else tuple(wanted)
    places = {own: base / (f"epsilon-{own:g}" if budgets else str(own)) for own in wanted}
    if foreseen is not None:
        return _foreseen(wanted, places, budgets, foreseen, progress)
    found: list[Any] = []
    for own, one in wanted.items():
        run = one.trained(places[own], progress, observers=observers)
        done = " (trained before)" if run.seconds == 0 and not budgets else ""
        found.append(run)
        which, measured = f"epsilon {own:g}" if budgets else f"run {own} of {len(wanted)}", figure_of(run.figures)
        progress.report(f"{which}: {run.measured[0][0]} {run.figures[measured]:.2%}{done}")
    first = found[0]
    several = Repeated(
        runs=tuple(found), rows=tuple(map(_row, found)), budgets=budgets, open=all(r.open for r in found)
    )
    if not isinstance(first, Run):
        return several
    plans = _plans(base, RunDirectory(first.directory).read_json(names.SETTINGS)["data"]["fingerprint"])
    cost = {"standing": len(plans), **cost_of(plans, known_uses(first))}
    several = replace(several, promises=all(run.statement.promises for run in found), **cost)
    if not budgets:
        return several
    if first.statement.circumstances.data_public:
        model = RunDirectory(first.directory).read_json(names.SETTINGS)["settings"]["model"]
        plain = pretraining.accuracy_of_the_same(trial, model, base / PUBLIC, progress)
        several = replace(several, without_privacy=plain)
    RunDirectory(base).write_json(FILE, several.to_dict(), private=True)
    write(base / PLOT, curve_of_budgets(several.rows, several.without_privacy).encode(), private=True)
    return several


def _foreseen(
    wanted: Mapping[float, AnyTrial],
    places: Mapping[float, Path],
    budgets: tuple[float, ...],
    row_of: Callable[[PrivateJob, RunDirectory], dict[str, Any]],
    progress: Progress,
) -> Repeated:
    """What the runs would be, and what they would cost together."""
    rows, plans, others, public = [], [], [], False
    for own, one in wanted.items():
        run = RunDirectory(places[own])
        job = one.job(run, progress)
        rows.append(row_of(job, run))
        public = job.source.public
        if not plans:
            others = [use for use in earlier(job).plans if composition.unit_of(use) == job.plan.unit.name]
        if not run.exists:  # a run that has begun is among the owner's uses already
            others.append(job.plan)
        plans.append(job.plan)
    promises = next(iter(wanted.values())).experiment.seed is None
    return Repeated(rows=tuple(rows), budgets=budgets, open=public, promises=promises, **cost_of(plans, others))


def _by_key(trial: AnyTrial, seeds: int | None) -> dict[float, AnyTrial]:
    """The trials by their numbers, each with a key of its own."""
    count, first = positive_integer("seeds", seeds, remedy="give the number of runs, such as 5"), trial.experiment.seed
    own = {number: None if first is None else first + number - 1 for number in range(1, count + 1)}
    return {number: replace(trial, experiment=replace(trial.experiment, seed=seed)) for number, seed in own.items()}


def _by_budget(
    trial: AnyTrial, epsilons: Sequence[float], base: Path, of_budget: Callable[[float], AnyTrial] | None
) -> dict[float, AnyTrial]:
    """The trial of each budget, rising; refused where they cannot be trained beside each other in this place."""
    if trial.experiment.noise_multiplier is not None:
        raise SfumatoError("several budgets and `noise_multiplier` are both given", "give one `epsilon` with it")
    wanted = sorted({positive("epsilon", value) for value in epsilons})
    named = ",".join(f"{value:g}" for value in epsilons)
    if len(wanted) < len(epsilons):
        raise SfumatoError(f"`epsilon={named}` names a budget twice", "name each once")
    if len(wanted) < 2:
        raise SfumatoError(f"`epsilon={named}` names no two budgets", "name several, or train a single run")
    _refuse_other(base, wanted)
    trials = {
        epsilon: of_budget(epsilon)
        if of_budget
        else replace(trial, experiment=replace(trial.experiment, epsilon=epsilon))
        for epsilon in wanted
    }
    for one in trials.values():  # before the first of them is paid for
        one.refuse_at_once()
    return trials


def _refuse_other(base: Path, wanted: Sequence[float]) -> None:
    """Refuse a directory that holds one run, or the curve of budgets that are not among the wanted ones."""
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
    """One run as plain data."""
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
