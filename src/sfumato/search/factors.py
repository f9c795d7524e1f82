"""One factor at a time: what each single change of a setting does (Mehta et al. 2022, table 4)."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from sfumato._checks import one_of
from sfumato.observers.notebook import shown
from sfumato.observers.progress import Progress
from sfumato.randomness import Space
from sfumato.runs.directory import RunDirectory
from sfumato.search import space as spaces
from sfumato.search.kept import MODES, KeptRuns, begin, check_kind, together, together_in_words
from sfumato.search.shared import Scoring, Shared, check_trainable, check_trial, decided, read, refuse_each
from sfumato.search.space import line_of, plain
from sfumato.search.trial import EarlierSearch, Trial
from sfumato.search.workers import Worker, rows_of
from sfumato.training.preparation.prepare import own_threads

FILE = "factors.json"


class Comparison(KeptRuns):
    """What came of single changes: the first run changes nothing, and each row has its difference to that one."""

    def __repr__(self) -> str:
        found = f"{len(self.changes) - 1} single changes"
        if self.rows and self.uncovered is None:
            best = max(self.rows[1:], key=lambda row: row["difference"], default=self.rows[0])
            found += f", best {line_of(best['change'])} by {best['difference']:+.1%} on {self.scored_on:,}"
        return f"Comparison({found}{together_in_words(self.uncovered)})"


@own_threads()
def one_at_a_time(
    trial: Trial,
    space: Space,
    *,
    directory: str | os.PathLike[str],
    search: str = "public",
    scoring: Scoring = Scoring(),  # noqa: B008 - frozen
    processes: int = 1,
    behind: EarlierSearch | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Comparison:
    """Train the trial as it is and with every single change, or go on with it, and compare.

    Args:
        space: {field of the experiment, or source: listed values}; a source must hold the same data in another form,
            such as another cache of their features.
        directory: where the runs are, and factors.json.
        trial, search, scoring, processes, behind, dry_run, progress: as for `search.open`.

    **Guarantee.** As for `search.open`: none for the comparison, and each run has its own.
    """
    one_of("search", search, MODES)
    progress, place = shown(progress), Path(directory)
    spaces.check(space, (*spaces.VARIED, "source"))
    shared = Shared.of(trial, scoring, processes)
    changes = spaces.single_changes(space)
    refuse_each(shared, changes)
    held = read(shared)
    check_kind(shared, held, search)
    check_trial(shared.trial)
    worker, plans = Worker(shared, held), []
    for change in changes:  # refuses what could not be trained before anything is spent
        own = worker.data_for(change)
        plan, settings = decided(shared, own, change)
        check_trainable(own.source, plan, settings, shared.changed(change).clock)
        plans.append(plan)
    cost = together(plans, held.source, behind) if search == "uncovered" else None
    comparison = Comparison(changes=tuple(changes), plans=tuple(plans), uncovered=cost, scored_on=len(held.validation))
    if dry_run:
        return comparison
    record = {
        "search": search,
        "factors": {name: repr(rule) for name, rule in space.items()},
        "data": held.source.fingerprint,
    }
    begin(place, record, FILE)
    shared = replace(shared, search=cost, fingerprint=held.source.fingerprint)
    own = held if processes == 1 else None
    del worker, held  # several processes read their own
    rows = rows_of(shared, changes, place, first=0, processes=processes, held=own, progress=progress)
    rows = [
        {"change": plain(change), **row, "difference": row["accuracy"] - rows[0]["accuracy"]}
        for change, row in zip(changes, rows, strict=True)
    ]
    comparison = replace(comparison, rows=tuple(rows))
    RunDirectory(place).write_json(FILE, {**record, **comparison.to_dict()}, private=True)
    return comparison
