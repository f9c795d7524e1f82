"""The output of searches, and of one training repeated with several keys or budgets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sfumato.cli.output import console
from sfumato.cli.output.console import Facts, Note, Table
from sfumato.privacy import Statement
from sfumato.privacy.statements.display import rounded_up
from sfumato.report import figure_of
from sfumato.search.space import line_of, plain

if TYPE_CHECKING:
    from sfumato.search import Comparison, Ranking, Repeated

SEEDED = "These runs are experiments: their randomness follows from seeds, so they have no privacy guarantee."
UNCOVERED = "The best run was chosen without noise: no guarantee covers this choice."
AVERAGES = {
    "averages of kept weights": "{weights}",
    "mean": "{accuracy:.2%}",
    "deviation over runs": "{deviation_over_runs:.2%}",
    "over steps": "{deviation_over_steps:.2%}",
}


# -- searches ----------------------------------------------------------------------------------------------------------


def announce_runs(found: Ranking, *, json: bool) -> None:
    """Print the runs that an open search would start."""
    rows = [
        {**plain(change), "steps": plan.steps, "batch_size": plan.expected_batch_size, "sigma": plan.noise_multiplier}
        for change, plan in zip(found.changes, found.plans, strict=True)
    ]
    together = found.uncovered and {**asdict(found.uncovered), "adjacency": found.adjacency}
    lines = [
        f"{line_of(change)}: {row['steps']} steps, batch {row['batch_size']}, noise {row['sigma']:g}"
        for change, row in zip(found.changes, rows, strict=True)
    ]
    nothing = console.dry_run_note(f"train {len(rows)} runs")
    console.show({"runs": rows, "together": together}, *lines, *costs(found), nothing, json=json)


def show_ranking(found: Ranking, search: str, varied: Sequence[str], place: Path, best: str, *, json: bool) -> None:
    """Print all runs of an open search, the best one first."""
    from sfumato.search.kept_runs import PLOT

    figure = figure_of(found.rows[0]) if found.rows else "accuracy"
    rows = [row | {name: console.cell(name, row[name]) for name in varied} for row in found.rows]
    columns = {name.replace("_", " "): f"{{{name}}}" for name in varied} | _run_columns(found, figure)
    verb = "embed" if figure == "recall" else "train"
    console.show(
        {"search": search, **found.to_dict()},
        *_rows(found, Table(rows, columns)),
        Note(f"{place / PLOT}   accuracy by setting"),
        Note(f"sfumato {verb} {place / best}   trains with the best settings on the whole training part"),
        json=json,
    )


def show_comparison(found: Comparison, search: str, *, json: bool) -> None:
    """Print the effect of each single change; after a dry run, only the changes."""
    if not found.rows:
        console.show({}, *map(line_of, found.changes), *costs(found), json=False)
        return
    rows = [
        row | {"words": line_of(row["change"]), "gain": 100 * row["difference"] if row["change"] else None}
        for row in found.rows
    ]
    figure = figure_of(rows[0])
    columns = {"change": "{words}", figure: f"{{{figure}:.2%}}", "difference": "{gain:+.2f}"}
    table = Table(rows, columns | _run_columns(found, figure), texts=1)
    console.show({"search": search, **found.to_dict()}, *_rows(found, table), json=json)


def _run_columns(found: Ranking | Comparison, figure: str) -> dict[str, str]:
    """The columns that all tables of runs share."""
    epsilon = "epsilon" if found.promises else "epsilon of its plan"
    return {figure: f"{{{figure}:.2%}}", epsilon: "{epsilon:.3f}", "run": "{run}"}


def _rows(found: Ranking | Comparison, table: Table) -> Iterator[Any]:
    """The table of all runs, and their privacy cost."""
    yield from ("", table, "")
    yield Note(f"scored on {found.scored_on:,} records that no run was trained on")
    yield from costs(found)


def costs(found: Ranking | Comparison) -> Iterator[str]:
    """The total privacy cost of all runs of an open search, in words."""
    cost = found.uncovered
    if not found.promises:
        yield "These runs are seeded, so none of them has a guarantee; the figures are those of their plans."
    if cost is None:
        yield "The data are public, so the search costs nothing."
    else:
        yield (
            f"None of the {cost.runs} guarantees covers the search. Together, the plans are "
            f"({rounded_up(cost.epsilon)}, {cost.delta!r})-differentially private under {found.adjacency} adjacency. "
            "The scores have no noise."
        )
    yield ""


# -- one training several times ----------------------------------------------------------------------------------------


def show_repeated(found: Repeated, base: Path, *, json: bool) -> None:
    """Print the figures of several runs, and their total privacy cost."""
    data = found.to_dict()
    if not found.budgets:
        statement = found.runs[0].statement
        promised = statement.figures if isinstance(statement, Statement) else {"promises": False, "epsilon": None}
        data = {**data, "delta_of_all": found.delta, **promised, "statement": statement.sentence}
    lines = _budget_lines(found, base) if found.budgets else _seed_lines(found, data)
    console.show(data, *lines, json=json)


def show_dry_run(found: Repeated, base: Path, *, json: bool) -> None:
    """Print what the run for each budget would do, and the total privacy cost of all."""
    from sfumato.cli.output.training_output import facts_of

    each = ((f"epsilon {own:g}", Facts(facts_of(row)), "") for own, row in zip(found.budgets, found.rows, strict=True))
    plain = "; one more would be trained without privacy, since the data are public" if found.is_public else ""
    console.show(
        found.to_dict(),
        *(part for parts in each for part in parts),
        f"These would be {len(found.rows)} releases of one data set: {_joint_cost(found)}.",
        _total_cost_line(found),
        Note(f"dry run: no privacy was spent; without --dry-run these would be the runs in {base}{plain}"),
        json=json,
    )


def _budget_lines(found: Repeated, base: Path) -> Iterator[Any]:
    from sfumato.search.repeated import PLOT, PUBLIC

    epsilon = "epsilon" if found.promises else "epsilon of its plan"
    rows = [row | {"budget": f"{row['epsilon']:.3f}"} for row in found.rows]
    if found.without_privacy is not None:
        plain = {"budget": "none", "accuracy": found.without_privacy, "noise_multiplier": 0.0}
        rows.append(plain | {"run": str(base / PUBLIC)})
    columns = {epsilon: "{budget}", "accuracy": "{accuracy:.2%}", "noise": "{noise_multiplier:.4g}", "run": "{run}"}
    yield from ("", Table(rows, columns), "")
    cost = _joint_cost(found)
    yield f"These are {len(found.rows)} releases of one data set: {cost}, had they been planned in advance."
    yield _total_cost_line(found)
    if not found.is_public:
        yield Note("note: measured on private data; keep the table and the curve to yourself")
        yield UNCOVERED
    yield ""
    yield Note(f"{base / PLOT}   the curve")
    if found.promises:
        yield Note(
            "if the budget was chosen in advance and only its model is shown, that model's own guarantee holds: "
            f"sfumato verify {found.rows[-1]['run']}"
        )


def _seed_lines(found: Repeated, data: dict[str, Any]) -> Iterator[Any]:
    embeds = found.figure == "recall"
    name = found.runs[0].main_figures[0][0] if embeds else "test accuracy"
    middle = f"mean {found.mean:.2%}" if embeds else f"median {found.median:.2%}"
    yield ""
    yield (
        f"{name}  {middle}, standard deviation {found.spread:.2%} over {len(found.values)} runs "
        f"({min(found.values):.2%} to {max(found.values):.2%})"
    )
    yield console.fill("next run       {interval[0]:.2%} to {interval[1]:.2%} (95% prediction interval)", data)
    yield console.fill("top five       median {top5:.2%}", data)
    if data.get("averages"):
        yield from ("", Table(data["averages"], AVERAGES))
    if not found.is_public:
        yield Note("note: measured on private data; keep these figures to yourself")
    yield from ("", f"One run: {data['statement']}", "")
    if found.epsilon_of_all is None:
        return
    statement = found.runs[0].statement
    one = "a person who" if isinstance(statement, Statement) and statement.plan.users else "an example that"
    they = f"Together, all {found.stored_runs} runs on these data in this directory, if planned in advance, are"
    if not found.promises:
        they = f"{SEEDED} With secret keys, the plans of all {found.stored_runs} in this directory would together be"
    yield (
        f"{they} ({rounded_up(found.epsilon_of_all)}, {found.delta!r})-differentially private under {found.adjacency} "
        f"adjacency for {one} is in each of them."
    )
    yield _total_cost_line(found)
    if not found.is_public:
        yield UNCOVERED


def _joint_cost(found: Repeated) -> str:
    """The joint guarantee of the runs of several budgets; for seeded runs, that of their plans."""
    pair = f"({rounded_up(found.epsilon_of_all or 0.0)}, {found.delta!r})"
    figures = f"{pair}-differentially private under {found.adjacency} adjacency"
    if found.promises:
        return f"together they are {figures}"
    return f"{SEEDED[0].lower()}{SEEDED[1:]} With secret keys, their plans would together be {figures}"


def _total_cost_line(found: Repeated) -> str | None:
    """The total of all of the owner's runs on these data, if it is larger."""
    if found.epsilon_of_all_uses is None or found.epsilon_of_all_uses <= (found.epsilon_of_all or 0.0):
        return None
    return (
        f"With your other known runs on these data: epsilon {rounded_up(found.epsilon_of_all_uses)}, "
        f"for {found.adjacency_of_all_uses} adjacency."
    )
