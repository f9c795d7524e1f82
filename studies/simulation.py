"""A search by simulation: trains every setting with a fraction of its batch and noise, and checks the best ones."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from sfumato._checks import SfumatoError, positive_integer
from sfumato.data import Source
from sfumato.observers.progress import Progress
from sfumato.privacy import PrivacyPlan
from sfumato.randomness import RunKey, Space
from sfumato.report import sweep_panels
from sfumato.runs.directory import RunDirectory
from sfumato.search.space import line_of, plain
from sfumato.search.sweeping import Sweep, composed_cost, sweep, with_delta
from sfumato.search.trials import Grid, Rows, Trial, Trials, best_first
from sfumato.search.workers import Scoring, read, refuse_embeddings
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
class Simulation(Sweep):
    """The results of a search by simulation, the best simulated run first.

    Args:
        simulate: the factor by which batch and noise of each run were smaller.
        full_plans: the full-size plan of each change, in the order of the runs; `plans` holds the simulated ones.
        larger_runs: the runs at twice the simulation's size, then those at full size, if there are any.
        best: the change with the highest accuracy at full size if several were trained there, else in the simulation.
    """

    simulate: int = 1
    full_plans: tuple[PrivacyPlan, ...] = ()
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

    def decide(self, source: Source) -> Any:
        """The decision, with the scaled plan."""
        decided = super().decide(source)
        return decided._replace(plan=scaled_plan(decided.plan, self.simulate))

    def prepare_job(self, decided: Any, source: Source, start: Start, own: Any = None) -> PrivateJob:
        """The job of one run, whose record names the factor of the simulation."""
        start = replace(start, request={**start.facts.request, "simulates": self.simulate})
        return super().prepare_job(decided, source, start, own)


def _scaled_down(trial: Trial, factor: int) -> Trial:
    """The same training, with batch and noise smaller than at full size by this factor."""
    given = {field.name: getattr(trial, field.name) for field in fields(Trial)}
    return trial if factor == 1 else ScaledTrial(**given, simulate=factor)


@dataclass(frozen=True)
class SimulatedGrid(Grid):
    """The settings to simulate."""

    def record(self, runs: int) -> dict[str, Any]:
        """The space, the number of runs and the factor."""
        trial: Any = self.trial
        return {**super().record(runs), "simulate": trial.simulate}

    def arranged(self, changes: Rows, rows: Rows) -> list[dict[str, Any]]:
        """The rows with their changes, the best run first."""
        return [{"change": plain(changes[number]), **rows[number]} for number in best_first(rows)]

    def plot(self, rows: Rows, without_privacy: float | None) -> str:
        """One panel for each varied setting."""
        return sweep_panels([{**row, **row["change"]} for row in rows], list(self.space))


@dataclass(frozen=True)
class BestOnes(Trials):
    """The best settings of a simulation, to be trained at another size.

    Args:
        predicted: for each of them its number, its change, and its accuracy in the simulation.
    """

    is_search = True
    file = "larger.json"

    predicted: Sequence[tuple[int, Mapping[str, Any], float]]

    def changes(self, key: RunKey) -> dict[str, dict[str, Any]]:
        """Their changes, in directories named like those of the simulation."""
        return {str(number + 1): dict(change) for number, change, _ in self.predicted}

    def arranged(self, changes: Rows, rows: Rows) -> list[dict[str, Any]]:
        """The rows with their changes and the predicted accuracies."""
        both = zip(self.predicted, rows, strict=True)
        return [{"change": plain(change), "predicted": share, **row} for (_, change, share), row in both]


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
        space, candidates: as for `search.Grid`.
        factor: the factor by which batch and noise are smaller. Each run is cheaper by this factor.
        directory: the directory of the runs, with the larger runs in subdirectories, sweep.json and sweep.svg.
        confirm: the number of best settings to train at full size too. A later call can add more. Runs that were begun
            count even if a later call gives a smaller number.
        scoring, processes, dry_run, progress: as for `search.sweep`.

    **Guarantee.** None is needed. Data that are not public are refused, since a simulated run spends far more than the
    requested epsilon. Each run's statement is that of its own plan, with the noise and the sampling that it was trained
    with, never that of the simulated plan.
    """
    place = Path(directory)
    refuse_embeddings(trial, "a simulation")
    _refuse_numbers(factor, confirm)
    if not trial.spec.is_public:
        raise SfumatoError(
            f"{trial.spec.spec} is private, and a simulated run spends far more than the epsilon asked for",
            "simulate on a public stand-in, or declare the data if they are public (`public=True`); the settings "
            "found can be used for private data",
        )
    how: dict[str, Any] = {"scoring": scoring, "processes": processes, "progress": progress}
    grid = SimulatedGrid(_scaled_down(trial, factor), space, candidates)
    result = sweep(grid, directory=place, dry_run=dry_run, **how)
    data, at_full_size = read(trial, scoring), Grid(trial, space)
    full = [
        with_delta(at_full_size.trial_with(change), data.delta).decide(data.source).plan for change in result.changes
    ]
    known = {field.name: getattr(result, field.name) for field in fields(Sweep)}
    simulation = Simulation(**known, simulate=factor, full_plans=tuple(full))
    return simulation if dry_run else _compared(simulation, trial, place, confirm, how)


def _refuse_numbers(factor: int, confirm: int) -> None:
    """Refuse a factor below 2, and an invalid number of runs at full size."""
    remedy = "give the factor by which batch and noise are smaller, such as 16"
    if positive_integer(factor=factor, remedy=remedy) == 1:
        raise SfumatoError("factor must be at least 2, got 1", "sfumato sweep trains every setting at full size")
    if confirm != 0:
        positive_integer(confirm=confirm, remedy="give the number of the best settings to train at full size")


def _compared(simulation: Simulation, trial: Trial, place: Path, confirm: int, how: Mapping[str, Any]) -> Simulation:
    """The simulation with larger runs of its best settings. Each run is started, resumed or read."""
    changes = [plain(change) for change in simulation.changes]
    ranked = [(changes.index(row["change"]), row["change"], row["accuracy"]) for row in simulation.rows]
    twice, begun = simulation.simulate // 2, sum(path.name.isdigit() for path in (place / FULL).glob("*"))
    confirm = max(confirm, begun)
    larger_runs, plans = [], list(simulation.plans)
    for factor, count in ((twice, CHECKED if twice > 1 else 0), (1, confirm)):
        if count:
            best = BestOnes(_scaled_down(trial, factor), ranked[:count])
            larger = sweep(best, directory=place / (FULL if factor == 1 else f"simulated-{factor}"), **how)
            larger_runs.append(LargerRuns(simulate=factor, rows=larger.rows, scored_on=larger.scored_on or 0))
            plans += larger.plans
    best = ranked[0][0]
    if confirm > 1:  # measured accuracies at full size count more than predicted ones
        best = ranked[best_first(larger_runs[-1].rows)[0]][0]
    earlier = trial.earlier_search(read(trial, None).source) if trial.earlier_search else None
    simulation = replace(
        simulation,
        best=simulation.changes[best],
        larger_runs=tuple(larger_runs),
        cost=composed_cost(plans, earlier),
    )
    written = RunDirectory(place).read_json("sweep.json") | simulation.to_dict()
    RunDirectory(place).write_json("sweep.json", written, private=True)
    return simulation
