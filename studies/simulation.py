"""A search by simulation: trains every setting with a fraction of its batch and noise, and checks the best ones."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from sfumato._checks import SfumatoError, positive_integer
from sfumato._files import write
from sfumato.data import Source
from sfumato.observers.progress import Progress, default_progress
from sfumato.privacy import PrivacyPlan
from sfumato.randomness import Space
from sfumato.report import sweep_panels
from sfumato.runs.directory import RunDirectory
from sfumato.search import space as spaces
from sfumato.search.kept_runs import FILE, PLOT, Ranking, best_first, joint_search_cost, write_record
from sfumato.search.search_context import (
    Scoring,
    SearchContext,
    SearchData,
    check_changes,
    check_values,
    decide_run,
    probe_changes,
    read,
)
from sfumato.search.space import line_of, plain
from sfumato.search.trial import Trial, refuse_embeddings, restore_threads
from sfumato.search.workers import run_all, train_all
from sfumato.training.job import PrivateJob
from sfumato.training.preparation.start import Start
from studies.total_noise import law_violation, scaled_plan

CHECKED = 2
"""The number of best settings that are also trained at twice the simulation's size, as a cheap check."""
ENOUGH_TO_RANK = 3
FULL = "full-size"


@dataclass(frozen=True, kw_only=True)
class LargerRuns:
    """The results of larger runs, compared with the simulation's predictions.

    Args:
        simulate: the factor by which batch and noise of these runs were smaller than at full size; 1 at full size.
        rows: for each run its change, its accuracy `predicted` by the simulation, its measured `accuracy`, its
            directory, and the figures of a table.
        scored_on: the number of records on which both were scored.
    """

    simulate: int
    rows: tuple[dict[str, Any], ...]
    scored_on: int

    @property
    def difference(self) -> float:
        """The mean of measured minus predicted accuracy."""
        return math.fsum(row["accuracy"] - row["predicted"] for row in self.rows) / len(self.rows)

    @property
    def largest_difference(self) -> float:
        """The largest absolute difference between measured and predicted accuracy."""
        return max(abs(row["accuracy"] - row["predicted"]) for row in self.rows)

    @property
    def standard_error(self) -> float:
        """The standard error of one difference due to the number of records: two shares p of n records, each with
        variance p (1 - p) / n.

        The true error may be smaller, since both runs were scored on the same records, or larger, since the runs differ
        in other randomness.
        """
        shares = [row[name] for row in self.rows for name in ("predicted", "accuracy")]
        return math.sqrt(2 * math.fsum(p * (1 - p) for p in shares) / len(shares) / self.scored_on)

    @property
    def rank_correlation(self) -> float | None:
        """Spearman's rank correlation of predicted and measured accuracy. None for fewer than three runs, or if all
        predicted or all measured accuracies are equal."""
        from scipy import stats

        predicted, found = ([row[name] for row in self.rows] for name in ("predicted", "accuracy"))
        if len(self.rows) < ENOUGH_TO_RANK or len(set(predicted)) == 1 or len(set(found)) == 1:
            return None
        result: Any = stats.spearmanr(predicted, found)
        return float(result.statistic)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        names = ("difference", "largest_difference", "standard_error", "rank_correlation")
        figures = {name: getattr(self, name) for name in names}
        return {"simulate": self.simulate, **figures, "rows": list(self.rows)}


@dataclass(frozen=True, kw_only=True)
class Simulation(Ranking):
    """The results of a search by simulation, the best simulated run first.

    Args:
        simulate: the factor by which batch and noise of each run were smaller.
        full_plans: the full-size plan of each change, in the order of the runs; `plans` holds the simulated ones.
        larger_runs: the runs at twice the simulation's size, then those at full size, if there are any.
        best: the change with the highest accuracy at full size if several were trained there, else in the simulation.
    """

    simulate: int
    full_plans: tuple[PrivacyPlan, ...]
    larger_runs: tuple[LargerRuns, ...] = ()

    def __repr__(self) -> str:
        best = f"best {line_of(self.best)}, predicted accuracy"
        found = f"{best} {self.predicted:.1%}" if self.rows else "nothing was run"
        return f"Simulation({len(self.changes)} runs at 1/{self.simulate} of their batch and noise, {found})"

    @property
    def full_plan(self) -> PrivacyPlan:
        """The full-size plan of the best settings."""
        return self.full_plans[self.changes.index(self.best)]

    @property
    def predicted(self) -> float:
        """The accuracy of the best settings in the simulation."""
        return next(row["accuracy"] for row in self.rows if row["change"] == plain(self.best))

    @property
    def notes(self) -> list[str]:
        """Notes on the limits of simulating these plans."""
        noted = {}
        if any(plan.sampling_probability == 1 for plan in self.full_plans):
            noted["full"] = "a step of all examples is simulated by a Poisson sample of them"
        low = min(range(len(self.plans)), key=lambda number: self.plans[number].noise_multiplier)
        noted["law"] = law_violation(self.plans[low], self.full_plans[low])
        return [f"note: {line}" for line in noted.values() if line is not None]

    def to_dict(self) -> dict[str, Any]:
        """The entries of the search's file."""
        plan = self.full_plan
        full = {
            "epsilon": plan.epsilon(),
            "delta": plan.delta,
            "batch_size": plan.expected_batch_size,
            "noise_multiplier": plan.noise_multiplier,
            "steps": plan.steps,
            "predicted_accuracy": self.predicted,
        }
        return {**super().to_dict(), "full_size": full, "larger_runs": [runs.to_dict() for runs in self.larger_runs]}


@dataclass(frozen=True, kw_only=True)
class ScaledTrial(Trial):
    """A trial with the settings of the full size, but a fraction of its batch and noise.

    Args:
        simulate: the factor by which batch and noise are smaller.
    """

    simulate: int

    def decide_private(self, source: Source) -> Any:
        """The decision, with the scaled plan."""
        found = super().decide_private(source)
        return found._replace(plan=scaled_plan(found.plan, self.simulate))

    def prepare_job(self, decided: Any, source: Source, start: Start, **options: Any) -> PrivateJob:
        """The job of one run, whose record names the factor of the simulation."""
        start = replace(start, request={**start.context.request, "simulates": self.simulate})
        return super().prepare_job(decided, source, start, **options)


def _scaled_down(shared: SearchContext, factor: int) -> SearchContext:
    """The same runs, with batch and noise smaller than at full size by this factor."""
    given = {one.name: getattr(shared.trial, one.name) for one in fields(Trial)}
    return replace(shared, trial=Trial(**given) if factor == 1 else ScaledTrial(**given, simulate=factor))


@restore_threads
def simulate(
    trial: Trial,
    space: Space,
    factor: int,
    *,
    directory: str | os.PathLike[str],
    confirm: int = 0,
    candidates: int | None = None,
    scoring: Scoring = Scoring(),  # noqa: B008 - frozen
    processes: int = 1,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Simulation:
    """Train every setting with a fraction of its batch and noise, for as many steps, to choose settings for full size.

    This is how TAN chooses settings (Sander et al. 2023, arXiv 2210.03403). sigma / B and T are kept, so each step has
    the same noise, and a run learns about as much. The two best settings are then trained with twice the batch and
    noise, if that is less than full size, and the `confirm` best ones at full size. Their accuracies are compared with
    the predictions.

    Args:
        trial: the training that each run changes, with the budget and the sizes of the full size.
        space, candidates, scoring, processes, dry_run, progress: as for `search.open_search`.
        factor: the factor by which batch and noise are smaller. Each run is cheaper by this factor.
        directory: the directory of the runs, with the larger runs in subdirectories, sweep.json and sweep.svg.
        confirm: the number of best settings to train at full size too. A later call can add more. Runs that were begun
            count even if a later call gives a smaller number.

    **Guarantee.** None is needed. Data that are not public are refused, since a simulated run spends far more than the
    requested epsilon. Each run's statement is that of its own plan, with the noise and the sampling that it was trained
    with, never that of the simulated plan.
    """
    place = Path(directory)
    refuse_embeddings(trial, "a simulation")
    spaces.check(space, trial.searchable_fields)
    _refuse_numbers(factor, confirm)
    shared = _scaled_down(SearchContext.from_trial(trial, scoring, processes), factor)
    changes = spaces.changes_of(space, place, candidates, trial.experiment.seed, keep=not dry_run)
    check_changes(shared, probe_changes(space))
    held = _public(shared)
    check_values(shared, held, space)
    full = [decide_run(_scaled_down(shared, 1), held, change).plan for change in changes]
    plans = [scaled_plan(plan, factor) for plan in full]
    found = Simulation(
        changes=tuple(changes),
        plans=tuple(plans),
        cost=joint_search_cost(plans, held.source, trial),
        uncovered=None,
        data_digests=tuple(held.source.data_digests),
        scored_on=len(held.validation),
        simulate=factor,
        full_plans=tuple(full),
    )
    if dry_run:
        return found
    return _trained(
        trial,
        shared,
        found,
        held,
        place,
        space,
        confirm=confirm,
        processes=processes,
        progress=default_progress(progress),
    )


def _refuse_numbers(factor: int, confirm: int) -> None:
    """Refuse a factor below 2, and an invalid number of runs at full size."""
    remedy = "give the factor by which batch and noise are smaller, such as 16"
    if positive_integer("factor", factor, remedy=remedy) == 1:
        raise SfumatoError("factor must be at least 2, got 1", "sfumato sweep trains every setting at full size")
    if confirm != 0:
        positive_integer("confirm", confirm, remedy="give the number of the best settings to train at full size")


def _public(shared: SearchContext) -> SearchData:
    """The data. Refuses private data."""
    held = read(shared)
    if not held.source.public:
        raise SfumatoError(
            f"{shared.trial.spec.spec} is private, and a simulated run spends far more than the epsilon asked for",
            "simulate on a public stand-in, or declare the data if they are public (`public=True`); the settings "
            "found can be used for private data",
        )
    return held


def _trained(
    trial: Trial,
    shared: SearchContext,
    found: Simulation,
    held: SearchData,
    place: Path,
    space: Space,
    *,
    confirm: int,
    processes: int,
    progress: Progress,
) -> Simulation:
    """Train all simulated runs, then the larger ones. Each run is started, resumed or read."""
    source = held.source
    record = {
        "search": "public",
        "space": {name: repr(rule) for name, rule in space.items()},
        "runs": len(found.changes),
        "data": source.fingerprint,
        "simulate": found.simulate,
    }
    write_record(place, record, FILE)
    shared = replace(shared, fingerprint=source.fingerprint)
    how: dict[str, Any] = {"processes": processes, "held": held if processes == 1 else None, "progress": progress}
    figures = train_all(shared, found.changes, place, first=1, **how)
    rows = [{"change": plain(change), **row} for change, row in zip(found.changes, figures, strict=True)]
    order = best_first(rows)
    ranked = tuple(rows[number] for number in order)
    twice, confirm = found.simulate // 2, max(confirm, len(list((place / FULL).glob("*"))))
    larger = [(twice, order[: CHECKED if twice > 1 else 0]), (1, order[:confirm])]
    larger = [(factor, numbers) for factor, numbers in larger if numbers]
    larger_runs = [
        _train_full_size(shared, found, factor, {n: rows[n] for n in numbers}, place, **how)
        for factor, numbers in larger
    ]
    plans = [*found.plans, *(scaled_plan(found.full_plans[n], factor) for factor, numbers in larger for n in numbers)]
    best = order[0]
    if confirm > 1:  # measured accuracies at full size count more than predicted ones
        best = order[best_first(larger_runs[-1].rows)[0]]
    found = replace(
        found,
        rows=ranked,
        best=found.changes[best],
        larger_runs=tuple(larger_runs),
        cost=joint_search_cost(plans, source, trial),
    )
    RunDirectory(place).write_json(FILE, {**record, **found.to_dict()}, private=True)
    write(place / PLOT, sweep_panels([{**row, **row["change"]} for row in ranked], list(space)).encode(), private=True)
    return found


def _train_full_size(
    shared: SearchContext,
    found: Simulation,
    factor: int,
    predicted: Mapping[int, Mapping[str, Any]],
    place: Path,
    *,
    processes: int,
    held: SearchData | None,
    progress: Progress,
) -> LargerRuns:
    """Train some settings at another size. `predicted` holds their rows in the simulation, by number."""
    name = FULL if factor == 1 else f"simulated-{factor}"
    numbers = list(predicted)
    changes, places = [found.changes[n] for n in numbers], [place / name / str(n + 1) for n in numbers]
    rows: list[dict[str, Any]] = [{} for _ in numbers]
    shared = _scaled_down(shared, factor)
    progress.begin("training at full size" if factor == 1 else "checking", len(numbers))
    for done, (number, row) in enumerate(run_all(shared, changes, places, processes=processes, held=held), 1):
        foretold = predicted[numbers[number]]["accuracy"]
        change = plain(changes[number])
        rows[number] = {"change": change, "predicted": foretold, **row, "run": str(places[number])}
        progress.report(f"{line_of(changes[number])}: predicted {foretold:.2%}, found {row['accuracy']:.2%}")
        progress.advance(done)
    return LargerRuns(simulate=factor, rows=tuple(rows), scored_on=found.scored_on)
