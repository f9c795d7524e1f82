"""What a search by simulation has to say: what was predicted, how well that held, and what to train at full size."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sfumato.cli.output import console
from sfumato.cli.output.searched import report_cost
from sfumato.search.space import line_of, plain

if TYPE_CHECKING:
    from sfumato.search import Simulation
    from sfumato.search.simulation import LargerRuns

SIZES = ("epsilon", "noise_multiplier", "batch_size", "steps")


def announce(found: Simulation, *, json: bool) -> None:
    """The runs of a simulation that is not begun, and what they stand for."""
    rows = [
        {"change": plain(change), "simulated": _sizes(small), "full_size": _sizes(full)}
        for change, small, full in zip(found.changes, found.plans, found.full_plans, strict=True)
    ]
    if json:
        console.as_json({"simulate": found.simulate, "runs": rows, "notes": found.notes})
        return
    for change, row in zip(found.changes, rows, strict=True):
        console.result(f"{line_of(change)}: {_in_words(row['simulated'])}, for {_in_words(row['full_size'])}")
    for line in found.notes:
        console.note(line)
    console.note(console.nothing_spent(f"train {len(rows)} runs at 1/{found.simulate} of their batch and noise"))


def show(found: Simulation, best: Path, command: str, *, json: bool) -> None:
    """All simulated runs, the best one first; larger ones; and the command for the full size."""
    from sfumato.search.kept import PLOT

    if json:
        data = {"search": "public", "simulate": found.simulate, **found.to_dict()}
        console.as_json({**data, "notes": found.notes, "train": command})
        return
    names = list(found.rows[0]["change"])
    lines = [
        [
            *(_cell(row["change"][name]) for name in names),
            *(f"{row['accuracy']:.2%}", str(row["batch_size"]), f"{row['noise_multiplier']:.4g}"),
            *(f"{row['epsilon']:.3f}", str(row["run"])),
        ]
        for row in found.rows
    ]
    head = (*(name.replace("_", " ") for name in names), "accuracy", "batch", "noise", "its epsilon", "run")
    console.table(head, lines, apart=True)
    console.note(
        f"simulated at 1/{found.simulate} of their batch and noise; scored on {found.scored_on:,} records that no run "
        "was trained on"
    )
    for line in found.notes:
        console.note(line)
    report_cost(found)
    for larger in found.larger_runs:
        _show_larger(larger, found.simulate)
    plan = found.full_plan
    console.result(f"best           {line_of(found.best)}")
    full = f"{_in_words(_sizes(plan))} at delta {plan.delta!r}"
    console.result(f"at full size   {full}, for the N = {plan.population:,} that are trained on here")
    console.paragraph(f"predicted      accuracy {found.predicted:.2%}{_found_in_words(found)}")
    console.note(f"{best.parent / PLOT}   what was found, setting by setting")
    console.note(f"sfumato train {best}   trains on the whole training part with the best settings; or, as a command:")
    console.note(command)


def _show_larger(larger: LargerRuns, simulate: int) -> None:
    """Predicted against found."""
    size = "full size" if larger.simulate == 1 else f"1/{larger.simulate} of batch and noise"
    console.result(f"Predicted at 1/{simulate}, found at {size}:")
    lines = [
        (
            line_of(row["change"]),
            *(f"{row['predicted']:.2%}", f"{row['accuracy']:.2%}"),
            *(f"{100 * (row['accuracy'] - row['predicted']):+.2f}", f"{row['epsilon']:.3f}", str(row["run"])),
        )
        for row in larger.rows
    ]
    console.table(("change", "predicted", "found", "difference", "its epsilon", "run"), lines, texts=1, apart=True)
    correlation, chance = larger.rank_correlation, f"one standard error of {larger.scored_on:,} records"
    ranks = "" if correlation is None else f"; rank correlation {correlation:.2f} (Spearman's)"
    console.paragraph(
        f"found minus predicted: {100 * larger.difference:+.2f} points on average, at most "
        f"{100 * larger.largest_difference:.2f} in size; {chance} is {100 * larger.standard_error:.2f}{ranks}"
    )


def _found_in_words(found: Simulation) -> str:
    """What the best settings came to at full size, where they were trained so."""
    last = found.larger_runs[-1] if found.larger_runs else None
    if last is None or last.simulate != 1:
        return ""
    row: Mapping[str, Any] = next(row for row in last.rows if row["change"] == plain(found.best))
    return f", found {row['accuracy']:.2%} at full size"


def _sizes(plan: Any) -> dict[str, Any]:
    values = (plan.epsilon(), plan.noise_multiplier, plan.expected_batch_size, plan.steps)
    return dict(zip(SIZES, values, strict=True))


def _in_words(sizes: Mapping[str, Any]) -> str:
    return (
        f"epsilon {sizes['epsilon']:.4g}, batch {sizes['batch_size']:,}, noise {sizes['noise_multiplier']:.4g}, "
        f"{sizes['steps']:,} steps"
    )


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
