"""The output of sweeps: searches, and one training repeated with several keys or budgets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sfumato.cli.output import console
from sfumato.cli.output.console import Facts, Note, Table
from sfumato.privacy import Statement
from sfumato.privacy.statements.display import rounded_up
from sfumato.search.space import line_of, plain

if TYPE_CHECKING:
    from sfumato.search import Sweep

SEEDED = "These runs are experiments: their randomness follows from seeds, so they have no privacy guarantee."
UNCOVERED = "The best run was chosen without noise: no guarantee covers this choice."
AVERAGES = {
    "averages of kept weights": "{weights}",
    "mean": "{accuracy:.2%}",
    "deviation over runs": "{deviation_over_runs:.2%}",
    "over steps": "{deviation_over_steps:.2%}",
}


# -- searches ----------------------------------------------------------------------------------------------------------


def show_search(result: Sweep, place: Path, best: str, *, json: bool) -> None:
    """Print the runs of a search: of a grid or draws the best one first, of single changes the effect of each."""
    from sfumato.search import Grid

    trials, ranked = result.trials, isinstance(result.trials, Grid)
    if not result.rows:
        _show_planned(result, json=json and ranked)
        return
    figure, accuracy = result.figure, f"{{{result.figure}:.2%}}"
    if isinstance(trials, Grid):
        varied = list(trials.space)
        rows = [row | {name: console.cell(name, row[name]) for name in varied} for row in result.rows]
        columns = {name.replace("_", " "): f"{{{name}}}" for name in varied} | {figure: accuracy}
    else:
        rows = [
            row | {"words": line_of(row["change"]), "gain": 100 * row["difference"] if row["change"] else None}
            for row in result.rows
        ]
        columns = {"change": "{words}", figure: accuracy, "difference": "{gain:+.2f}"}
    columns |= {"epsilon" if result.promises else "epsilon of its plan": "{epsilon:.3f}", "run": "{run}"}
    verb = "embed" if figure == "recall" else "train"
    notes = (
        Note(f"{place / 'sweep.svg'}   accuracy by setting"),
        Note(f"sfumato {verb} {place / best}   trains with the best settings on the whole training part"),
    )
    console.show(
        {"search": result.search, **result.to_dict()},
        "",
        Table(rows, columns, texts=0 if ranked else 1),
        "",
        Note(f"scored on {result.scored_on:,} records that no run was trained on"),
        *costs(result),
        *(notes if ranked else ()),
        json=json,
    )


def _show_planned(result: Sweep, *, json: bool) -> None:
    """Print the runs that a search would start."""
    rows = [
        {**plain(change), "steps": plan.steps, "batch_size": plan.expected_batch_size, "sigma": plan.noise_multiplier}
        for change, plan in zip(result.changes, result.plans, strict=True)
    ]
    lines = [
        f"{line_of(change)}: {row['steps']} steps, batch {row['batch_size']}, noise {row['sigma']:g}"
        for change, row in zip(result.changes, rows, strict=True)
    ]
    together = result.uncovered and {**asdict(result.uncovered), "adjacency": result.adjacency}
    nothing = console.dry_run_note(f"train {len(rows)} runs")
    console.show({"runs": rows, "together": together}, *lines, *costs(result), nothing, json=json)


def costs(result: Sweep) -> Iterator[str]:
    """The total privacy cost of all runs of a search, in words."""
    cost = result.uncovered
    if not result.promises:
        yield "These runs are seeded, so none of them has a guarantee; the figures are those of their plans."
    if cost is None:
        yield "The data are public, so the search costs nothing."
    else:
        yield (
            f"None of the {cost.runs} guarantees covers the search. Together, the plans are "
            f"({rounded_up(cost.epsilon)}, {cost.delta!r})-differentially private under {result.adjacency} adjacency. "
            "The scores have no noise."
        )
    yield ""


# -- one training several times ----------------------------------------------------------------------------------------


def show_repeated(result: Sweep, base: Path, *, json: bool) -> None:
    """Print the figures of several runs, or what they would do, and their total privacy cost."""
    from sfumato.search import Seeds

    data = result.to_dict()
    if isinstance(result.trials, Seeds):
        statement = result.runs[0].statement
        promised = statement.figures if isinstance(statement, Statement) else {"promises": False, "epsilon": None}
        data = {**data, "delta_of_all": data["delta"], **promised, "statement": statement.sentence}
        lines = _seed_lines(result, data)
    else:
        lines = _budget_lines(result, base) if result.runs else _planned_lines(result, base)
    console.show(data, *lines, json=json)


def _planned_lines(result: Sweep, base: Path) -> Iterator[Any]:
    """What the run for each budget would do."""
    from sfumato.cli.output.training_output import facts_of

    for change, row in zip(result.changes, result.rows, strict=True):
        yield from (line_of(change), Facts(facts_of(row)), "")
    yield f"These would be {len(result.rows)} releases of one data set: {_joint_cost(result)}."
    yield _total_cost_line(result)
    plain = "; one more would be trained without privacy, since the data are public" if result.is_public else ""
    yield Note(f"dry run: no privacy was spent; without --dry-run these would be the runs in {base}{plain}")


def _budget_lines(result: Sweep, base: Path) -> Iterator[Any]:
    from sfumato.search.sweeping import PUBLIC

    rows = [row | {"budget": f"{row['epsilon']:.3f}"} for row in result.rows]
    if result.without_privacy is not None:
        plain = {"budget": "none", "accuracy": result.without_privacy, "noise_multiplier": 0.0}
        rows.append(plain | {"run": str(base / PUBLIC)})
    columns = {"epsilon" if result.promises else "epsilon of its plan": "{budget}", "accuracy": "{accuracy:.2%}"}
    yield from ("", Table(rows, columns | {"noise": "{noise_multiplier:.4g}", "run": "{run}"}), "")
    cost = _joint_cost(result)
    yield f"These are {len(result.rows)} releases of one data set: {cost}, had they been planned in advance."
    yield _total_cost_line(result)
    if not result.is_public:
        yield Note("note: measured on private data; keep the table and the curve to yourself")
        yield UNCOVERED
    yield ""
    yield Note(f"{base / 'budgets.svg'}   the curve")
    if result.promises:
        yield Note(
            "if the budget was chosen in advance and only its model is shown, that model's own guarantee holds: "
            f"sfumato verify {result.rows[-1]['run']}"
        )


def _seed_lines(result: Sweep, data: dict[str, Any]) -> Iterator[Any]:
    embeds = result.figure == "recall"
    name = result.runs[0].main_figures[0][0] if embeds else "test accuracy"
    middle = f"mean {result.mean:.2%}" if embeds else f"median {result.median:.2%}"
    yield ""
    yield (
        f"{name}  {middle}, standard deviation {result.spread:.2%} over {len(result.values)} runs "
        f"({min(result.values):.2%} to {max(result.values):.2%})"
    )
    yield console.fill("next run       {interval[0]:.2%} to {interval[1]:.2%} (95% prediction interval)", data)
    yield console.fill("top five       median {top5:.2%}", data)
    if data.get("averages"):
        yield from ("", Table(data["averages"], AVERAGES))
    if not result.is_public:
        yield Note("note: measured on private data; keep these figures to yourself")
    yield from ("", f"One run: {data['statement']}", "")
    if (cost := result.cost) is None:
        return
    unit = "a person who" if result.plans[0].users else "an example that"
    they = f"Together, all {cost.runs} runs on these data in this directory, if planned in advance, are"
    if not result.promises:
        they = f"{SEEDED} With secret keys, the plans of all {cost.runs} in this directory would together be"
    yield (
        f"{they} ({rounded_up(cost.epsilon)}, {cost.delta!r})-differentially private under {result.adjacency} "
        f"adjacency for {unit} is in each of them."
    )
    yield _total_cost_line(result)
    if not result.is_public:
        yield UNCOVERED


def _joint_cost(result: Sweep) -> str:
    """The joint guarantee of the runs of several budgets; for seeded runs, that of their plans."""
    assert result.cost is not None
    pair = f"({rounded_up(result.cost.epsilon)}, {result.cost.delta!r})"
    figures = f"{pair}-differentially private under {result.adjacency} adjacency"
    if result.promises:
        return f"together they are {figures}"
    return f"{SEEDED[0].lower()}{SEEDED[1:]} With secret keys, their plans would together be {figures}"


def _total_cost_line(result: Sweep) -> str | None:
    """The total of all of the owner's runs on these data, if it is larger."""
    if result.cost is None or result.all_uses is None or result.all_uses[0] <= result.cost.epsilon:
        return None
    epsilon, adjacency = result.all_uses
    return f"With your other known runs on these data: epsilon {rounded_up(epsilon)}, for {adjacency} adjacency."
