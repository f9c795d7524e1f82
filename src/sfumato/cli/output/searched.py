"""What a search has to say: its table, its winner, or what it would be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sfumato.cli.output import console
from sfumato.privacy.statements.presented import rounded_up
from sfumato.report import figure_of
from sfumato.search.space import line_of, plain

if TYPE_CHECKING:
    from sfumato.privacy import PrivateSelection
    from sfumato.search import Comparison, Ranking, Selected


def announce_runs(found: Ranking, *, json: bool) -> None:
    """The runs of an open search that is not begun."""
    rows = [
        {**plain(change), "steps": plan.steps, "batch_size": plan.expected_batch_size, "sigma": plan.noise_multiplier}
        for change, plan in zip(found.changes, found.plans, strict=True)
    ]
    if json:
        together = found.uncovered and {**asdict(found.uncovered), "adjacency": found.adjacency}
        console.as_json({"runs": rows, "together": together})
        return
    for change, row in zip(found.changes, rows, strict=True):
        console.result(f"{line_of(change)}: {row['steps']} steps, batch {row['batch_size']}, noise {row['sigma']:g}")
    report_cost(found)
    console.note(console.nothing_spent(f"train {len(rows)} runs"))


def show_ranking(found: Ranking, search: str, varied: Sequence[str], place: Path, best: str, *, json: bool) -> None:
    """All runs of an open search, the best one first."""
    from sfumato.search.kept import PLOT

    if json:
        console.as_json({"search": search, **found.to_dict()})
        return
    figure = figure_of(found.rows[0])
    head = [name.replace("_", " ") for name in (*varied, figure, _epsilon(found), "run")]
    lines = [
        [
            *(f"{row[name]:.4g}" if isinstance(row[name], float) else str(row[name]) for name in varied),
            *(f"{row[figure]:.2%}", f"{row['epsilon']:.3f}", row["run"]),
        ]
        for row in found.rows
    ]
    _show_rows(found, head, lines)
    console.note(f"{place / PLOT}   what was found, setting by setting")
    verb = "embed" if figure == "recall" else "train"
    console.note(f"sfumato {verb} {place / best}   trains on the whole training part with the best settings")


def announce_changes(found: Comparison) -> None:
    """The runs of a comparison that is not begun."""
    console.result("\n".join(map(line_of, found.changes)))
    report_cost(found)


def show_comparison(found: Comparison, search: str, *, json: bool) -> None:
    """What each single change does."""
    if json:
        console.as_json({"search": search, **found.to_dict()})
        return
    lines = [
        (
            line_of(row["change"]),
            f"{row[figure_of(row)]:.2%}",
            f"{100 * row['difference']:+.2f}" if row["change"] else "",
            f"{row['epsilon']:.3f}",
            str(row["run"]),
        )
        for row in found.rows
    ]
    _show_rows(found, ("change", figure_of(found.rows[0]), "difference", _epsilon(found), "run"), lines, texts=1)


def _epsilon(found: Ranking | Comparison) -> str:
    """Of a column: whose epsilon it has."""
    return "epsilon" if found.promises else "epsilon of its plan"


def _show_rows(
    found: Ranking | Comparison, head: Sequence[str], lines: Sequence[Sequence[str]], texts: int = 0
) -> None:
    """The table of all runs, and what they cost."""
    console.table(head, lines, texts=texts, apart=True)
    console.note(f"scored on {found.scored_on:,} records that no run was trained on")
    report_cost(found)


def report_cost(found: Ranking | Comparison) -> None:
    """What all runs of an open search cost together, if anything."""
    cost = found.uncovered
    if not found.promises:
        console.result("These runs are by a seed, so none of them promises anything; the figures are of their plans.")
    if cost is None:
        console.result("The data are public, so the search costs nothing.")
    else:
        console.result(
            f"The search is not covered by the promise of any of its {cost.runs} runs. Together they come to "
            f"({rounded_up(cost.epsilon)}, {cost.delta!r})-differential privacy under {found.adjacency} adjacency, "
            "which each of their plans holds for, and their scores have no noise."
        )
    console.result()


def announce_selection(selection: PrivateSelection, *, json: bool) -> None:
    """What a private selection that is not begun would promise."""
    draws, plan = selection.draws, selection.plan
    figures: dict[str, Any] = {
        "epsilon": selection.epsilon(),
        "delta": plan.delta,
        "epsilon_of_one_run": plan.epsilon(),
        "epsilon_of_as_many_released": selection.epsilon_of_all(math.ceil(draws.mean)),
        "noise_multiplier": plan.noise_multiplier,
        "steps": plan.steps,
        "batch_size": plan.expected_batch_size,
        "score_noise": selection.score_noise,
        "law": draws.law,
        "mean": draws.mean,
        "candidates_in_95_of_100_searches": draws.quantile(0.95),
    }
    rows = [
        (name.replace("_", " "), f"{value:.6g}" if isinstance(value, float) else str(value))
        for name, value in figures.items()
    ]
    notes = [console.nothing_spent("search")]
    if figures["epsilon_of_as_many_released"] <= figures["epsilon"]:
        notes.insert(
            0,
            "note: so few runs cost less when all of them are released: as many, planned in advance, would do better "
            "(--search uncovered tells their cost)",
        )
    console.figures(figures, rows, *notes, json=json)


def show_selected(found: Selected, *, json: bool) -> None:
    """The winner of a private selection."""
    run, settings = found.run, found.settings
    if run is None or settings is None:
        console.result(
            "No candidate came of the search: nothing is released. That it can happen is part of the promise."
        )
        return
    if json:
        console.as_json(
            {
                "search": "private",
                "settings": settings,
                "score": found.score,
                "accuracy": run.accuracy,
                **run.statement.figures,
                "run": str(run.directory),
                "statement": run.statement.sentence,
            }
        )
        return
    noisy = ", noise included" if found.selection.score_noise is not None else ""
    console.result()
    console.result(f"the winner     {line_of(settings)}")
    console.paragraph(f"its score      {found.score} right answers on the validation part{noisy}")
    console.paragraph(run.statement.sentence)
    console.note(f"sfumato verify {run.directory}   checks that the statement follows from the record")
    if run.statement.promises:
        console.note("how many candidates there were is not kept: the promise rests on that secret")
