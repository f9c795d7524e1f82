"""A sweep: one training run several times with changes; the rows of all runs, and their joint privacy cost.

The data are read once in each process. All that can be refused is refused before the first run begins.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from sfumato import averaging
from sfumato._checks import SfumatoError, one_of, positive_integer
from sfumato._files import write, write_errors
from sfumato.data import Source
from sfumato.observers.progress import Progress, default_progress
from sfumato.privacy import PrivacyPlan, Search
from sfumato.privacy.statements.display import rounded_up
from sfumato.privacy.unit import Adjacency
from sfumato.randomness import RunKey
from sfumato.report import Evaluation, figure_of
from sfumato.runs import directory as names
from sfumato.runs import pins
from sfumato.runs.directory import RunDirectory
from sfumato.runs.owner import budgets, uses
from sfumato.runs.owner.lines import DataIdentity
from sfumato.runs.run import Run
from sfumato.search.space import line_of, plain
from sfumato.search.trials import Budgets, Grid, Seeds, Trials, best_first
from sfumato.search.workers import Scoring, Worker, row_of, train_all
from sfumato.training import pretraining
from sfumato.training.conclusion.run_report import evaluation_of
from sfumato.training.job import PrivateJob
from sfumato.training.preparation.prepare import default_threads, own_threads
from sfumato.training.run import PublicRun
from sfumato.training.trial import Observers, Trial

MODES = ("public", "uncovered")
KEY = "search.key"
PUBLIC = "without-privacy"


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """The rows of several runs, and their joint cost.

    Args:
        trials: the list of trials.
        search: how a search treats privacy: "public" or "uncovered"; None for repeated training.
        changes, plans: each run's change and plan, in the order of the runs. Trainings without privacy have no plans.
        rows: for each run its change, its figures and its directory: of a grid or draws the best run first. Without
            training, the planned runs if they were asked for.
        best: the change of the best run of a grid or of draws.
        runs: the runs in their order; empty after a dry run.
        cost: the joint cost of all runs in the directory, had they been planned in advance, and of the search that the
            trial came from. None for trainings without privacy.
        adjacency: the adjacency for which the joint cost holds.
        all_uses: the joint epsilon and adjacency with all other known runs of the owner on these data. Of repeated
            training only.
        data_digests: keyed codes that identify the data, whatever their name.
        scored_on: the number of held-out records that a search is scored on; None for the test part.
        is_public: whether the figures may be shown to others.
        promises: whether the runs have a guarantee. Seeded runs do not; the figures are then those of their plans.
        without_privacy: the accuracy of the same model trained without privacy, for several budgets on public data.
    """

    trials: Trials
    search: str | None = None
    changes: tuple[Mapping[str, Any], ...] = ()
    plans: tuple[PrivacyPlan, ...] = ()
    rows: tuple[dict[str, Any], ...] = ()
    best: Mapping[str, Any] = field(default_factory=dict)
    runs: tuple[Run | PublicRun, ...] = ()
    cost: Search | None = None
    adjacency: Adjacency | None = None
    all_uses: tuple[float, Adjacency] | None = None
    data_digests: tuple[str, ...] = ()
    scored_on: int | None = None
    is_public: bool = False
    promises: bool = True
    without_privacy: float | None = None

    def __repr__(self) -> str:
        facts = [f"{len(self.changes)} runs"]
        if self.rows and self.is_public and isinstance(self.trials, Grid):
            facts.append(f"best {line_of(self.best)} with {self.figure} {self.rows[0][self.figure]:.1%}")
        elif self.rows and self.is_public and isinstance(self.trials, Seeds):
            facts.append(f"median {self.figure} {self.median:.1%}, standard deviation {self.spread:.1%}")
        cost = "no guarantee"
        if self.cost is not None:
            seeded = "" if self.promises else "seeded, no guarantee; their plans "
            cost = f"{seeded}together epsilon {rounded_up(self.cost.epsilon)} at delta {self.cost.delta!r}"
        return f"Sweep({', '.join(facts)}; {'public data' if self.search == 'public' else cost})"

    @property
    def uncovered(self) -> Search | None:
        """The joint cost of a search that no guarantee covers, which each run's statement names; None for others."""
        return self.cost if self.search == "uncovered" else None

    @property
    def figure(self) -> str:
        """The name of the main figure: accuracy, or recall for embeddings."""
        return figure_of(self.rows[0])

    @property
    def values(self) -> list[float]:
        """The accuracy or recall (at the chosen false accept rate) of each row. Private unless the data are public."""
        return [row[self.figure] for row in self.rows]

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
        return statistics.stdev(self.values) if len(self.rows) > 1 else 0.0

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95% prediction interval for the value of another run (`averaging.interval`); None for a single run."""
        if len(self.rows) < 2:
            return None
        bounds = averaging.interval(torch.tensor(self.values, dtype=torch.float64))
        return max(0.0, float(bounds.low)), min(1.0, float(bounds.high))

    @property
    def top5(self) -> float | None:
        """The median top-5 accuracy; None with five classes or fewer."""
        values = [row["top5"] for row in self.rows if row.get("top5") is not None]
        return statistics.median(values) if values else None

    @property
    def averages(self) -> list[dict[str, Any]]:
        """For the last weights and for each average: its name, its mean accuracy, the standard deviation of accuracy
        over the runs, and the mean standard deviation over each run's last steps. Empty if a run kept no weights.

        These are measured on up to 1,000 test records, and are as private as the accuracies.
        """
        evaluations = [evaluation_of(RunDirectory(run.directory)) for run in self.runs]
        kept = [
            result.over_steps.rows for result in evaluations if isinstance(result, Evaluation) and result.over_steps
        ]
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

    def to_dict(self) -> dict[str, Any]:
        """Plain data: each run, the purpose of the list of trials, and the joint cost."""
        cost = self.cost if self.search != "public" else None
        epsilon, adjacency = self.all_uses or (None, None)
        return {
            "rows": list(self.rows),
            **self._summary(),
            "public": self.is_public,
            "promises": self.promises,
            "epsilon_of_all": cost and cost.epsilon,
            "delta": self.cost and self.cost.delta,
            "adjacency": cost and self.adjacency,
            "epsilon_of_all_uses": epsilon,
            "adjacency_of_all_uses": adjacency,
        }

    def _summary(self) -> dict[str, Any]:
        """The best change, the statistics over all runs, or the curve of budgets."""
        if self.trials.is_search:
            best = {"best": plain(self.best)} if isinstance(self.trials, Grid) else {}
            return {**best, "scored_on": self.scored_on}
        if isinstance(self.trials, Budgets):
            return {"budgets": list(self.trials.budgets), "without_privacy": self.without_privacy}
        spread = {"interval": self.interval, "spread": self.spread, "values": self.values}
        if self.figure == "recall":
            return {"recall": self.mean, "far": self.rows[0]["far"], **spread}
        return {"accuracy": self.median, "top5": self.top5, "averages": self.averages, **spread}


@own_threads()
def sweep(
    trials: Trials,
    *,
    directory: str | os.PathLike[str],
    search: str | None = None,
    scoring: Scoring | None = None,
    processes: int = 1,
    dry_run: bool = False,
    preview: Callable[[PrivateJob, RunDirectory], dict[str, Any]] | None = None,
    observers: Observers | Callable[..., Any] | None = None,
    progress: Progress | None = None,
) -> Sweep:
    """Train, resume or read the run of every trial.

    Args:
        trials: the runs: a `Grid`, `SingleChanges`, `Seeds` or `Budgets`.
        directory: the directory of the runs and of the files of results.
        search: for a search "public" (the default), which refuses private data, or "uncovered".
        scoring: the records that the runs of a search are scored on; by default a tenth of the training part.
        processes: the number of runs at once. With several, a script needs `if __name__ == "__main__":`.
        dry_run: report the planned runs and their cost; train and write nothing.
        preview: for a dry run, makes a row from the job of each run.
        observers: further observers of each run.
        progress: where to report progress.

    **Guarantee.** None for seeded runs. Otherwise each run has the (epsilon, delta) of its own plan, for the plan's
    unit and adjacency, if only this run is shown. All runs together have the (epsilon, delta) of the result, by
    composition, if they were planned in advance (`budgets.joint_cost`). The best run is found without noise, and
    choosing it is not covered: each statement of an uncovered search says so and gives the cost of all its runs. A
    search on public data needs no guarantee. A run without privacy is trained only if the data are public.
    """
    place, progress = Path(directory), default_progress(progress)
    if trials.is_search:
        search, scoring = one_of(MODES, search=search or "public"), scoring or Scoring()
    positive_integer(processes=processes)
    trials.refuse_other(place)
    worker = Worker(trial=trials.trial, scoring=scoring)
    key = _draw_key(place, trials.trial.experiment.seed)
    listed = _requested(trials, changes := trials.changes(key), processes)
    data = worker.data_of(next(iter(listed.values())), progress)
    if search == "public" and not data.source.public:
        problem = f"{trials.trial.spec.spec} is private, but the search is public"
        raise SfumatoError(problem, "give `search=uncovered`")
    listed = {name: with_delta(trial, data.delta) for name, trial in listed.items()}
    plans = _plans(trials, listed, worker)
    _refuse_over_budget(trials.trial, plans, place)
    result = Sweep(
        trials=trials,
        search=search,
        changes=tuple(changes.values()),
        plans=tuple(plans.values()),
        data_digests=tuple(data.source.data_digests),
        scored_on=len(data.source.test) if trials.is_search else None,
        is_public=data.source.public,
        promises=bool(plans) and trials.trial.experiment.seed is None,
        **_joint_cost(trials, plans, data.source, place),
    )
    if trials.is_search:
        _report_overlaps(trials.trial, data.source, progress)
    if dry_run:
        return result if preview is None else replace(result, rows=_previewed(listed, worker, place, preview, progress))
    record = {"search": search, **trials.record(len(listed)), "data": data.source.fingerprint}
    if trials.is_search:
        draws = getattr(trials, "candidates", None) is not None and trials.trial.experiment.seed is None
        write_record(place, record, str(trials.file), key if draws else None)
    worker.search, worker.fingerprint = result.uncovered, data.source.fingerprint
    runs = train_all(trials, changes, listed, place, worker, processes, observers, progress)
    result = replace(_with_rows(result, runs), without_privacy=_without_privacy(result, runs, place, progress))
    if trials.file is not None:
        written = record | result.to_dict() if trials.is_search else result.to_dict()
        RunDirectory(place).write_json(trials.file, written, private=True)
    if trials.plot_file is not None:
        plot = trials.plot(result.rows, result.without_privacy)
        write(place / trials.plot_file, plot.encode(), private=True)
    return result


def _draw_key(place: Path, seed: int | None) -> RunKey:
    """The key of random draws, which is the same when a search is resumed."""
    if seed is not None:
        return RunKey.from_seed(seed, "search")
    return RunKey.load(place / KEY) if (place / KEY).exists() else RunKey.fresh()


def _requested(trials: Trials, changes: Mapping[str, Mapping[str, Any]], processes: int) -> dict[str, Trial]:
    """The trial of each run. Refuses impossible options before any data are read.

    Runs of a search keep no weights, and their statements name the search in place of the one before it.
    """
    if (epsilon := trials.trial.options.get("report_epsilon")) is not None:
        raise SfumatoError(
            f"`report_epsilon` is {epsilon:g}, but there are several runs, and the figures of each would cost it",
            "use it with a single run",
        )
    listed = {name: trials.trial_with(change) for name, change in changes.items()}
    for trial in listed.values():
        trial.refuse_early()
    if trials.is_search:
        alone = {"earlier_search": None, "options": {**trials.trial.options, "keep": 0}}
        listed = {name: replace(trial, **alone) for name, trial in listed.items()}
    if processes > 1:
        threads = trials.trial.threads or max(1, default_threads() // processes)
        listed = {name: replace(trial, threads=threads) for name, trial in listed.items()}
    return listed


def with_delta(trial: Trial, delta: float | None) -> Trial:
    """The trial with this delta, if it has none."""
    if delta is None or trial.experiment.delta is not None:
        return trial
    return replace(trial, experiment=replace(trial.experiment, delta=delta))


def _plans(trials: Trials, listed: Mapping[str, Trial], worker: Worker) -> dict[str, PrivacyPlan]:
    """The plans of all private runs. Refuses a search whose runs can't be trained."""
    plans = {}
    for name, trial in listed.items():
        source = worker.data_of(trial).source
        decided = trial.decide(source)
        if (plan := getattr(decided, "plan", None)) is not None:
            plans[name] = plan
        elif trials.is_search:
            problem = f"method {decided.clients.method} has no plan, but a search compares runs with plans"
            raise SfumatoError(problem, "use a method with noise")
        if trials.is_search:
            trial.check_trainable(decided, source)
    return plans


def _refuse_over_budget(trial: Trial, plans: Mapping[str, PrivacyPlan], place: Path) -> None:
    """Refuse runs that together exceed their budget, before the first of them. Those that have begun are reserved."""
    coming = [plan for name, plan in plans.items() if not RunDirectory(place / name).exists]
    if (name := trial.options.get("budget")) is not None and coming:
        budgets.refuse_seeded(name, trial.experiment.seed)
        budgets.refuse_over_budget(name, coming)


def _joint_cost(trials: Trials, plans: Mapping[str, PrivacyPlan], source: Source, place: Path) -> dict[str, Any]:
    """The joint cost of all runs by composition.

    A search counts the earlier search that its trial came from; repeated training counts all runs on these data in the
    directory.
    """
    if not plans:
        return {}
    composed = list(plans.values())
    earlier = trials.trial.earlier_search
    if trials.is_search:
        before = earlier(source) if earlier else None
        cost = composed_cost(composed, before)
        return {"cost": cost, "adjacency": "zero-out" if before else budgets.adjacency_of(composed)}
    coming = [plan for name, plan in plans.items() if not RunDirectory(place / name).exists]
    composed += _other_plans(place, source.fingerprint, plans)
    cost, adjacency = composed_cost(composed), budgets.adjacency_of(composed)
    all_plans = list(coming)
    if not source.public:
        unit = composed[0].unit.name
        earlier_plans = uses.earlier_uses(DataIdentity.from_source(source)).plans
        all_plans += [plan for plan in earlier_plans if plan.unit.name == unit]
    all_uses = cost.epsilon, adjacency
    if len(all_plans) > len(composed):
        all_uses = max(cost.epsilon, budgets.joint_cost(all_plans)[0]), budgets.adjacency_of(all_plans)
    return {"cost": cost, "adjacency": adjacency, "all_uses": all_uses}


def composed_cost(plans: Sequence[PrivacyPlan], earlier: Search | None = None) -> Search:
    """The joint cost of runs with these plans, and of an earlier search."""
    epsilon, delta = budgets.joint_cost(plans)
    cost = Search(runs=len(plans), epsilon=epsilon, delta=delta)
    return cost if earlier is None else earlier + cost


def _other_plans(place: Path, fingerprint: str, plans: Mapping[str, PrivacyPlan]) -> list[PrivacyPlan]:
    """The plans of other private runs on these data in the directory, such as those of an earlier call."""
    runs = [RunDirectory(path) for path in sorted(place.iterdir()) if path.name not in plans] if place.is_dir() else []
    return [
        PrivacyPlan.from_dict(run.read_json(names.PLAN))
        for run in runs
        if run.exists
        and (run / names.PLAN).is_file()
        and run.read_json(names.SETTINGS)["data"]["fingerprint"] == fingerprint
    ]


def _report_overlaps(trial: Trial, source: Source, progress: Progress) -> None:
    """Report, before anything is spent, which records were used by runs on other data sets."""
    if not source.public:
        earlier = uses.earlier_uses(DataIdentity.from_source(source))
        for note in uses.overlap_notes(earlier, trial.options.get("budget")):
            progress.report(note)


def _previewed(
    listed: Mapping[str, Trial],
    worker: Worker,
    place: Path,
    preview: Callable[[PrivateJob, RunDirectory], dict[str, Any]],
    progress: Progress,
) -> tuple[dict[str, Any], ...]:
    """A row for each planned run."""
    rows = []
    for name, trial in listed.items():
        run = RunDirectory(place / name)
        rows.append(preview(trial.job(run, progress, worker.data_of(trial)), run))
    return tuple(rows)


def write_record(place: Path, record: Mapping[str, Any], file: str, key: RunKey | None = None) -> None:
    """Write the search's record and the key of its draws, or refuse to resume a search with another record."""
    run = RunDirectory(place)
    if (place / file).exists():
        before = run.read_json(file)
        pins.require_same(
            "search",
            {name: before.get(name) for name in record},
            record,
            remedy="give the options that the search began with, or another `directory`",
            where=str(place),
        )
        return
    strange = [path.name for path in place.iterdir() if path.name != KEY] if place.is_dir() else []
    if strange or (place.exists() and not place.is_dir()):
        raise SfumatoError(f"{place} exists and holds no search", "give `directory` a directory that is empty or new")
    with write_errors(place):
        place.mkdir(parents=True, exist_ok=True)
        if key is not None and not (place / KEY).exists():
            key.save(place / KEY)
    run.write_json(file, dict(record), private=True)


def _with_rows(result: Sweep, runs: Sequence[Run | PublicRun]) -> Sweep:
    """The result of these runs."""
    trials, rows = result.trials, [row_of(run) for run in runs]
    result = replace(result, runs=tuple(runs), rows=tuple(trials.arranged(result.changes, rows)))
    if isinstance(trials, Grid):
        return replace(result, best=result.changes[best_first(rows)[0]])
    return result if trials.is_search else replace(result, is_public=all(run.is_public for run in runs))


def _without_privacy(result: Sweep, runs: Sequence[Run | PublicRun], place: Path, progress: Progress) -> float | None:
    """For several budgets on public data, the accuracy of the same model without privacy."""
    if not (isinstance(result.trials, Budgets) and result.is_public):
        return None
    model = RunDirectory(runs[0].directory).read_json(names.SETTINGS)["settings"]["model"]
    return pretraining.nonprivate_accuracy(result.trials.trial, model, place / PUBLIC, progress)
