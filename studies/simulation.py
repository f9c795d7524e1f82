"""A search by simulation: every setting at a fraction of its batch and noise, and how well that held at larger ones."""

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
from sfumato.observers.notebook import shown
from sfumato.observers.progress import Progress
from sfumato.privacy import PrivacyPlan
from sfumato.randomness import Space
from sfumato.report import swept
from sfumato.runs.directory import RunDirectory
from sfumato.search import space as spaces
from sfumato.search.kept import FILE, PLOT, Ranking, begin, best_first, cost_together
from sfumato.search.shared import Held, Scoring, Shared, decided, read, refuse_each, tried, try_each
from sfumato.search.space import line_of, plain
from sfumato.search.trial import Trial, of_trials, refuse_embeddings
from sfumato.search.workers import carried_out, rows_of
from sfumato.training.job import PrivateJob
from sfumato.training.preparation.start import Start
from studies.total_noise import outside_the_law, simulated

CHECKED = 2
"""So many of the best settings are trained at twice the simulation's size, a cheap look at how well it holds."""
ENOUGH_TO_RANK = 3
FULL = "full-size"


@dataclass(frozen=True, kw_only=True)
class LargerRuns:
    """What larger runs came to, and what the simulation had foretold.

    Args:
        simulate: by how much batch and noise of these runs were smaller than at full size; 1 at full size.
        rows: of each run its change, accuracies `predicted` (the simulation's) and `accuracy` (found), where it is, and
            the figures of a table.
        scored_on: the number of records that both were scored on.
    """

    simulate: int
    rows: tuple[dict[str, Any], ...]
    scored_on: int

    @property
    def difference(self) -> float:
        """Found less predicted, on average."""
        return math.fsum(row["accuracy"] - row["predicted"] for row in self.rows) / len(self.rows)

    @property
    def largest_difference(self) -> float:
        """Of all runs, without its sign."""
        return max(abs(row["accuracy"] - row["predicted"]) for row in self.rows)

    @property
    def standard_error(self) -> float:
        """Of one such difference, by the number of records alone: two shares p of n records, each p (1 - p) / n.

        Both were scored on the same records, so chance may be less; by other randomness of the runs it may be more.
        """
        shares = [row[name] for row in self.rows for name in ("predicted", "accuracy")]
        return math.sqrt(2 * math.fsum(p * (1 - p) for p in shares) / len(shares) / self.scored_on)

    @property
    def rank_correlation(self) -> float | None:
        """Spearman's, of predicted and found; None for fewer than three runs, and where all of one are equal."""
        from scipy import stats

        predicted, found = ([row[name] for row in self.rows] for name in ("predicted", "accuracy"))
        if len(self.rows) < ENOUGH_TO_RANK or len(set(predicted)) == 1 or len(set(found)) == 1:
            return None
        result: Any = stats.spearmanr(predicted, found)
        return float(result.statistic)

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        names = ("difference", "largest_difference", "standard_error", "rank_correlation")
        figures = {name: getattr(self, name) for name in names}
        return {"simulate": self.simulate, **figures, "rows": list(self.rows)}


@dataclass(frozen=True, kw_only=True)
class Simulation(Ranking):
    """What came of a search by simulation, the best simulated run first.

    Args:
        simulate: by how much batch and noise of each run were smaller.
        full_plans: the plan at full size of each change, in the order of the runs; `plans` has those of the simulation.
        larger_runs: at twice the size, then at full size, where there are any.
        best: the change that learnt most at full size, where several were trained so; else in the simulation.
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
        """The best settings' plan at full size."""
        return self.full_plans[self.changes.index(self.best)]

    @property
    def predicted(self) -> float:
        """The accuracy of the best settings in the simulation."""
        return next(row["accuracy"] for row in self.rows if row["change"] == plain(self.best))

    @property
    def notes(self) -> list[str]:
        """What should be known of a simulation of these plans."""
        noted = {}
        if any(plan.sampling_probability == 1 for plan in self.full_plans):
            noted["full"] = "a step of all examples is simulated by a Poisson sample of them"
        low = min(range(len(self.plans)), key=lambda number: self.plans[number].noise_multiplier)
        noted["law"] = outside_the_law(self.plans[low], self.full_plans[low])
        return [f"note: {line}" for line in noted.values() if line is not None]

    def to_dict(self) -> dict[str, Any]:
        """What its file holds of it."""
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
class Smaller(Trial):
    """A trial whose runs have the settings that its choices mean, and a fraction of their batch and noise.

    Args:
        simulate: by how much batch and noise are smaller.
    """

    simulate: int

    def decided(self, source: Source) -> Any:
        """With a plan of its own."""
        found = super().decided(source)
        return found._replace(plan=simulated(found.plan, self.simulate))

    def prepared(self, decided: Any, source: Source, start: Start, **options: Any) -> PrivateJob:
        """Its record says what it simulates."""
        start = replace(start, request={**start.context.request, "simulates": self.simulate})
        return super().prepared(decided, source, start, **options)


def _at(shared: Shared, factor: int) -> Shared:
    """The same runs with batch and noise so much smaller than at full size."""
    given = {one.name: getattr(shared.trial, one.name) for one in fields(Trial)}
    return replace(shared, trial=Trial(**given) if factor == 1 else Smaller(**given, simulate=factor))


@of_trials
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
    """Train every setting with a fraction of its batch and noise, for as many steps, and say what to train in full.

    TAN's way to choose settings (Sander et al. 2023, arXiv 2210.03403): sigma / B and T are kept, so each step has as
    much noise, and a run learns about as much. Then the two best are trained with twice the batch and noise, where that
    is less than full size, and the `confirm` best at full size, and what was predicted is compared with what was found.

    Args:
        trial: what each run changes; its budget and sizes are those of the full size.
        space, candidates, scoring, processes, dry_run, progress: as for `search.open`.
        factor: by how much batch and noise are smaller: each run is so many times cheaper.
        directory: where the runs are, the larger ones in folders of their own, and sweep.json and sweep.svg.
        confirm: how many of the best settings are trained at full size too. Calling again with more of them goes on;
            those that were begun count however few are asked for.

    **Guarantee.** None is needed: data that are not public are refused, for a simulated run spends far more than the
    epsilon that was asked for. Each run's statement is that of its own plan, with the noise and the sampling that it
    was trained with, and never that of the plan that it simulates.
    """
    place = Path(directory)
    refuse_embeddings(trial, "a simulation")
    spaces.check(space, trial.varied)
    _refuse_numbers(factor, confirm)
    shared = _at(Shared.of(trial, scoring, processes), factor)
    changes = spaces.changes_of(space, place, candidates, trial.experiment.seed, keep=not dry_run)
    refuse_each(shared, tried(space))
    held = _public(shared)
    try_each(shared, held, space)
    full = [decided(_at(shared, 1), held, change).plan for change in changes]
    plans = [simulated(plan, factor) for plan in full]
    found = Simulation(
        changes=tuple(changes),
        plans=tuple(plans),
        cost=cost_together(plans, held.source, trial),
        uncovered=None,
        materials=tuple(held.source.materials),
        scored_on=len(held.validation),
        simulate=factor,
        full_plans=tuple(full),
    )
    if dry_run:
        return found
    return _trained(
        trial, shared, found, held, place, space, confirm=confirm, processes=processes, progress=shown(progress)
    )


def _refuse_numbers(factor: int, confirm: int) -> None:
    """Refuse a simulation that is none, and a number of full runs that is no number."""
    remedy = "give by how much smaller batch and noise are to be, such as 16"
    if positive_integer("factor", factor, remedy=remedy) == 1:
        raise SfumatoError("factor must be at least 2, got 1", "sfumato sweep trains every setting at full size")
    if confirm != 0:
        positive_integer("confirm", confirm, remedy="give how many of the best settings to train at full size")


def _public(shared: Shared) -> Held:
    """The data; private ones are refused."""
    held = read(shared)
    if not held.source.public:
        raise SfumatoError(
            f"{shared.trial.spec.spec} is private, and a simulated run spends far more than the epsilon asked for",
            "simulate on a public stand-in, or declare the data if they are public (`public=True`); the settings found "
            "serve for private data",
        )
    return held


def _trained(
    trial: Trial,
    shared: Shared,
    found: Simulation,
    held: Held,
    place: Path,
    space: Space,
    *,
    confirm: int,
    processes: int,
    progress: Progress,
) -> Simulation:
    """The search itself: all simulated runs, then larger ones, each run begun, resumed or read."""
    source = held.source
    record = {
        "search": "public",
        "space": {name: repr(rule) for name, rule in space.items()},
        "runs": len(found.changes),
        "data": source.fingerprint,
        "simulate": found.simulate,
    }
    begin(place, record, FILE)
    shared = replace(shared, fingerprint=source.fingerprint)
    how: dict[str, Any] = {"processes": processes, "held": held if processes == 1 else None, "progress": progress}
    figures = rows_of(shared, found.changes, place, first=1, **how)
    rows = [{"change": plain(change), **row} for change, row in zip(found.changes, figures, strict=True)]
    order = best_first(rows)
    ranked = tuple(rows[number] for number in order)
    twice, confirm = found.simulate // 2, max(confirm, len(list((place / FULL).glob("*"))))
    larger = [(twice, order[: CHECKED if twice > 1 else 0]), (1, order[:confirm])]
    larger = [(factor, numbers) for factor, numbers in larger if numbers]
    larger_runs = [
        _larger(shared, found, factor, {n: rows[n] for n in numbers}, place, **how) for factor, numbers in larger
    ]
    plans = [*found.plans, *(simulated(found.full_plans[n], factor) for factor, numbers in larger for n in numbers)]
    best = order[0]
    if confirm > 1:  # what was found at full size counts more than what was predicted
        best = order[best_first(larger_runs[-1].rows)[0]]
    found = replace(
        found,
        rows=ranked,
        best=found.changes[best],
        larger_runs=tuple(larger_runs),
        cost=cost_together(plans, source, trial),
    )
    RunDirectory(place).write_json(FILE, {**record, **found.to_dict()}, private=True)
    write(place / PLOT, swept([{**row, **row["change"]} for row in ranked], list(space)).encode(), private=True)
    return found


def _larger(
    shared: Shared,
    found: Simulation,
    factor: int,
    predicted: Mapping[int, Mapping[str, Any]],
    place: Path,
    *,
    processes: int,
    held: Held | None,
    progress: Progress,
) -> LargerRuns:
    """Some of the settings at another size: `predicted` has their rows by number."""
    name = FULL if factor == 1 else f"simulated-{factor}"
    numbers = list(predicted)
    changes, places = [found.changes[n] for n in numbers], [place / name / str(n + 1) for n in numbers]
    rows: list[dict[str, Any]] = [{} for _ in numbers]
    shared = _at(shared, factor)
    progress.begin("training at full size" if factor == 1 else "checking", len(numbers))
    for done, (number, row) in enumerate(carried_out(shared, changes, places, processes=processes, held=held), 1):
        foretold = predicted[numbers[number]]["accuracy"]
        change = plain(changes[number])
        rows[number] = {"change": change, "predicted": foretold, **row, "run": str(places[number])}
        progress.report(f"{line_of(changes[number])}: predicted {foretold:.2%}, found {row['accuracy']:.2%}")
        progress.advance(done)
    return LargerRuns(simulate=factor, rows=tuple(rows), scored_on=found.scored_on)
