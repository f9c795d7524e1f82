"""Searches that keep all runs, each with its own statement: on public data, or without a promise for the search.

They rank all settings of a space, or measure the effect of each single change (Mehta et al. 2022, table 4).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sfumato._checks import SfumatoError, one_of
from sfumato._files import write, write_errors
from sfumato.data import Source
from sfumato.observers.progress import Progress, default_progress
from sfumato.privacy import PrivacyPlan, Search
from sfumato.privacy.statements.display import rounded_up
from sfumato.privacy.unit import Adjacency
from sfumato.randomness import Space
from sfumato.report import figure_of, sweep_panels
from sfumato.runs import pins
from sfumato.runs.directory import RunDirectory
from sfumato.runs.owner import budgets
from sfumato.search import space as spaces
from sfumato.search.search_context import (
    Scoring,
    SearchContext,
    SearchData,
    check_changes,
    check_trainable,
    check_trial,
    check_values,
    decide_run,
    probe_changes,
    read,
    refuse_over_budget,
    report_overlaps,
)
from sfumato.search.space import line_of, plain
from sfumato.search.trial import restore_threads
from sfumato.search.workers import Worker, train_all
from sfumato.training.preparation.trial import AnyTrial

MODES = ("public", "uncovered")
FILE, FACTORS, PLOT = "sweep.json", "factors.json", "sweep.svg"


@dataclass(frozen=True, kw_only=True)
class KeptRuns:
    """The results of a search that keeps all runs, or its planned runs with `dry_run`.

    Args:
        changes, plans: each run's change and plan, in the order of the runs.
        uncovered: the joint cost of all runs, if no promise covers the search; None on public data.
        promises: whether each run promises anything. Seeded runs do not; the figures are then those of their plans.
        scored_on: the number of validation records, on which no run was trained.
        rows: for each run its change, its figures and its directory; empty after a dry run.
    """

    changes: tuple[Mapping[str, Any], ...]
    plans: tuple[PrivacyPlan, ...]
    uncovered: Search | None
    scored_on: int
    rows: tuple[dict[str, Any], ...] = ()
    promises: bool = True

    @property
    def adjacency(self) -> Adjacency | None:
        """The adjacency for which the joint cost holds; None if there is none. If an earlier search counts too, it is
        zero-out, since runs of either adjacency hold for it."""
        if self.uncovered is None:
            return None
        return budgets.adjacency_of(self.plans) if self.uncovered.runs == len(self.plans) else "zero-out"

    def to_dict(self) -> dict[str, Any]:
        """The entries of the search's file."""
        return {
            "rows": list(self.rows),
            "promises": self.promises,
            "scored_on": self.scored_on,
            "epsilon_of_all": self.uncovered.epsilon if self.uncovered else None,
            "delta": self.uncovered.delta if self.uncovered else self.plans[0].delta,
            "adjacency_of_all": self.adjacency,
        }


@dataclass(frozen=True, kw_only=True)
class Ranking(KeptRuns):
    """The results of an open search, the best run first.

    Args:
        cost: the joint cost of all runs, including the search that the experiment came from.
        data_digests: keyed codes that identify the data, whatever their name.
        best: the best run's change.
    """

    cost: Search
    data_digests: tuple[str, ...]
    best: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        found = f"best {line_of(self.best)}" if self.rows else "nothing was run"
        if self.rows and self.uncovered is None:
            figure = figure_of(self.rows[0])
            found += f" with {figure} {self.rows[0][figure]:.1%} of {self.scored_on:,}"
        return f"Ranking({len(self.changes)} runs, {found}{joint_cost_text(self.uncovered)})"

    def to_dict(self) -> dict[str, Any]:
        """The entries of the search's file."""
        return {"rows": list(self.rows), "best": plain(self.best)} | super().to_dict()


class Comparison(KeptRuns):
    """The results of single changes. The first run changes nothing; each row has its difference to the first."""

    def __repr__(self) -> str:
        found = f"{len(self.changes) - 1} single changes"
        if self.rows and self.uncovered is None:
            best = max(self.rows[1:], key=lambda row: row["difference"], default=self.rows[0])
            found += f", best {line_of(best['change'])} by {best['difference']:+.1%} on {self.scored_on:,}"
        return f"Comparison({found}{joint_cost_text(self.uncovered)})"


@restore_threads
def open_search(
    trial: AnyTrial,
    space: Space,
    *,
    directory: str | os.PathLike[str],
    search: str = "public",
    candidates: int | None = None,
    scoring: Scoring = Scoring(),  # noqa: B008 - frozen
    processes: int = 1,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Ranking:
    """Train or resume a run for every setting, and rank them by their accuracy on the validation part.

    Args:
        trial: the training that each run changes.
        space: {field of the experiment: rule}; a grid of the listed values, unless `candidates` are drawn.
        directory: the directory of the runs, sweep.json and sweep.svg.
        search: "public", which refuses private data, or "uncovered".
        candidates: the number of different settings to draw at random from the space.
        scoring: the records that the runs are scored on.
        processes: the number of runs at once. With several, a script needs `if __name__ == "__main__":`.
        dry_run: report the planned runs and their cost, and spend nothing.
        progress: where to report progress.

    **Guarantee.** None for seeded runs, and none needed on public data. An uncovered search has none either: each run's
    statement is that of its own plan. It says that the choice among the runs, by exact scores, is not covered, and it
    gives the cost of all runs by composition, had they been planned in advance (`budgets.joint_cost`).
    """
    one_of("search", search, MODES)
    place = Path(directory)
    spaces.check(space, trial.searchable_fields)
    shared = SearchContext.from_trial(trial, scoring, processes)
    check_changes(shared, probe_changes(space))
    changes = spaces.changes_of(space, place, candidates, trial.experiment.seed, keep=not dry_run)
    held = read_data(shared, search)
    check_values(shared, held, space)
    plans = [decide_run(shared, held, change).plan for change in changes]
    refuse_over_budget(shared, plans, place / FILE)
    report_overlaps(shared, held.source, progress)
    cost = joint_search_cost(plans, held.source, trial)
    ranking = Ranking(
        changes=tuple(changes),
        plans=tuple(plans),
        cost=cost,
        uncovered=cost if search == "uncovered" else None,
        data_digests=tuple(held.source.data_digests),
        scored_on=len(held.validation),
        promises=trial.experiment.seed is None,
    )
    if dry_run:
        return ranking
    record = {
        "search": search,
        "space": {name: repr(rule) for name, rule in space.items()},
        "runs": len(changes),
        "data": held.source.fingerprint,
    }
    write_record(place, record, FILE)
    held = held if processes == 1 else None  # several processes read their own
    figures = _trained(shared, ranking, place, record, first=1, processes=processes, held=held, progress=progress)
    rows = [{**plain(change), **row} for change, row in zip(changes, figures, strict=True)]
    order = best_first(rows)
    ranked = [rows[number] for number in order]
    ranking = replace(ranking, rows=tuple(ranked), best=changes[order[0]])
    RunDirectory(place).write_json(FILE, {**record, **ranking.to_dict()}, private=True)
    write(place / PLOT, sweep_panels(ranked, list(space)).encode(), private=True)
    return ranking


@restore_threads
def one_at_a_time(
    trial: AnyTrial,
    space: Space,
    *,
    directory: str | os.PathLike[str],
    search: str = "public",
    scoring: Scoring = Scoring(),  # noqa: B008 - frozen
    processes: int = 1,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Comparison:
    """Train or resume the trial unchanged and with every single change, and compare the runs.

    Args:
        space: {field of the experiment, or source: listed values}. A source must hold the same data in another form,
            such as another cache of their features.
        directory: the directory of the runs and factors.json.
        trial, search, scoring, processes, dry_run, progress: as for `search.open_search`.

    **Guarantee.** As for `search.open_search`: none for the comparison; each run has its own.
    """
    one_of("search", search, MODES)
    place = Path(directory)
    spaces.check(space, (*trial.searchable_fields, "source"))
    shared = SearchContext.from_trial(trial, scoring, processes)
    changes = spaces.single_changes(space)
    check_changes(shared, changes)
    held = read_data(shared, search)
    check_trial(shared.trial)
    worker, plans = Worker(shared, held), []
    for change in changes:  # refuse untrainable runs before anything is spent
        own = worker.data_for(change)
        found = decide_run(shared, own, change)
        check_trainable(shared, own, change, found)
        plans.append(found.plan)
    refuse_over_budget(shared, plans, place / FACTORS)
    report_overlaps(shared, held.source, progress)
    cost = joint_search_cost(plans, held.source, trial) if search == "uncovered" else None
    comparison = Comparison(
        changes=tuple(changes),
        plans=tuple(plans),
        uncovered=cost,
        scored_on=len(held.validation),
        promises=trial.experiment.seed is None,
    )
    if dry_run:
        return comparison
    factors = {name: repr(rule) for name, rule in space.items()}
    record = {"search": search, "factors": factors, "data": held.source.fingerprint}
    write_record(place, record, FACTORS)
    held = held if processes == 1 else None  # several processes read their own
    del worker, own
    rows = _trained(shared, comparison, place, record, first=0, processes=processes, held=held, progress=progress)
    rows = [
        {"change": plain(change), **row, "difference": row[figure_of(row)] - rows[0][figure_of(row)]}
        for change, row in zip(changes, rows, strict=True)
    ]
    comparison = replace(comparison, rows=tuple(rows))
    RunDirectory(place).write_json(FACTORS, {**record, **comparison.to_dict()}, private=True)
    return comparison


def _trained(
    shared: SearchContext,
    found: KeptRuns,
    place: Path,
    record: Mapping[str, Any],
    *,
    held: SearchData | None,
    progress: Progress | None,
    **how: Any,
) -> list[dict[str, Any]]:
    """The figures of all runs. If no promise covers the search, each run's statement names it."""
    shared = replace(shared, search=found.uncovered, fingerprint=record["data"])
    return train_all(shared, found.changes, place, held=held, progress=default_progress(progress), **how)


def best_first(rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """The numbers of the runs by descending accuracy or recall. Diverged runs come last, whatever their figure.

    >>> best_first([{"accuracy": 0.5, "loss": 1.0}, {"accuracy": 0.9, "loss": None}, {"accuracy": 0.7, "loss": 1.0}])
    [2, 0, 1]
    """
    return sorted(
        range(len(rows)),
        key=lambda number: (rows[number].get("loss", 0.0) is not None, rows[number][figure_of(rows[number])]),
        reverse=True,
    )


def read_data(shared: SearchContext, search: str) -> SearchData:
    """The data. Refuses a public search on private data."""
    held = read(shared)
    if search == "public" and not held.source.public:
        raise SfumatoError(f"{shared.trial.spec.spec} is private, but the search is public", "give `search=uncovered`")
    return held


def joint_search_cost(plans: Sequence[PrivacyPlan], source: Source, trial: AnyTrial) -> Search:
    """The joint cost of all runs by composition, including the search that the experiment came from."""
    epsilon, delta = budgets.joint_cost(list(plans))
    runs = Search(runs=len(plans), epsilon=epsilon, delta=delta)
    earlier = trial.public_search(source)
    return runs if earlier is None else earlier + runs


def joint_cost_text(uncovered: Search | None) -> str:
    """A suffix with the joint cost of a search that no promise covers; empty for others."""
    if uncovered is None:
        return ""
    return f"; not covered: together epsilon {rounded_up(uncovered.epsilon)} at delta {uncovered.delta!r}"


def write_record(place: Path, record: Mapping[str, Any], file: str) -> None:
    """Write the search's record, or refuse to resume a search with another record."""
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
    strange = [path.name for path in place.iterdir() if path.name != spaces.KEY] if place.is_dir() else []
    if strange or (place.exists() and not place.is_dir()):
        raise SfumatoError(f"{place} exists and holds no search", "give `directory` a directory that is empty or new")
    with write_errors(place):
        place.mkdir(parents=True, exist_ok=True)
    run.write_json(file, dict(record), private=True)
