"""What several runs of sfumato train have to say: one for each budget, or one for each of several keys."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sfumato.cli.output import console
from sfumato.privacy import Statement
from sfumato.privacy.statements.presented import rounded_up

if TYPE_CHECKING:
    from sfumato.search import Curve, Foreseen, Repeated

SEEDED = "These runs are experiments: their randomness follows from seeds, so their weights promise nothing to anybody."
UNCOVERED = "Which of them is best was measured without noise: that choice is not covered."


def show_budgets(found: Curve, base: Path, *, json: bool) -> None:
    """The table of budgets, and what all of them cost together."""
    from sfumato.search.curve import PLOT, PUBLIC

    if json:
        console.as_json(found.to_dict())
        return
    lines = [
        (f"{row['epsilon']:.3f}", f"{row['accuracy']:.2%}", f"{row['noise_multiplier']:.4g}", row["run"])
        for row in found.rows
    ]
    if found.without_privacy is not None:
        lines.append(("none", f"{found.without_privacy:.2%}", "0", str(base / PUBLIC)))
    epsilon = "epsilon" if found.promises else "epsilon of its plan"
    console.table((epsilon, "accuracy", "noise", "run"), lines, apart=True)
    console.result(
        f"These are {len(found.rows)} releases of one data set: {_promise(found)}, had they been planned in advance."
    )
    _show_other_runs(found, found.epsilon_of_all)
    if not found.public:
        console.note("note: measured on private data; keep the table and the curve to yourself")
        console.result(UNCOVERED)
    console.result()
    console.note(f"{base / PLOT}   the curve")
    if found.promises:
        console.note(
            f"one model, of a budget that was chosen beforehand, has its own promise where only it is shown: sfumato "
            f"verify {found.rows[-1]['run']}"
        )


def show_dry_run(found: Foreseen[tuple[dict[str, Any], list[tuple[str, str]]]], *, json: bool) -> None:
    """What the run of each budget would be, and what all of them would cost together."""
    if json:
        others = {name: value for name, value in vars(found).items() if name not in ("rows", "budgets")}
        console.as_json({"budgets": found.budgets, "runs": [data for data, _ in found.rows], **others})
        return
    for budget, (_, rows) in zip(found.budgets, found.rows, strict=True):
        console.result(f"epsilon {budget:g}")
        console.columns(rows)
        console.result()
    console.result(f"These would be {len(found.rows)} releases of one data set: {_promise(found)}.")
    _show_other_runs(found, found.epsilon_of_all)
    places = ", ".join(data["run"] for data, _ in found.rows)
    plain = "; beside them one would be trained without privacy, for the data are public" if found.public else ""
    console.note(f"nothing was spent; without --dry-run these would be the runs in {places}{plain}")


def show_seeds(found: Repeated, *, json: bool) -> None:
    """What was measured of the runs, and what all of them cost together."""
    embeds, statement = found.figure == "recall", found.runs[0].statement
    if json:
        console.as_json(
            {
                **(_recalls(found) if embeds else _accuracies(found)),
                "runs": [str(run.directory) for run in found.runs],
                **(statement.figures if isinstance(statement, Statement) else {"promises": False, "epsilon": None}),
                "epsilon_of_all": found.epsilon,
                "adjacency_of_all": found.adjacency,
                "epsilon_of_all_uses": found.epsilon_of_all_uses,
                "delta_of_all": found.delta,
                "statement": statement.sentence,
            }
        )
        return
    console.result()
    if embeds:
        name, middle = found.runs[0].measured[0][0], f"mean {found.mean:.2%}"
    else:
        name, middle = "test accuracy", f"median {found.median:.2%}"
    console.result(
        f"{name}  {middle}, standard deviation {found.spread:.2%} "
        f"over {len(found.values)} runs ({min(found.values):.2%} to {max(found.values):.2%})"
    )
    if embeds and found.interval is not None:
        low, high = found.interval
        console.result(f"another run    {low:.2%} to {high:.2%} in 95% of cases")
    if not embeds and found.top5 is not None:
        console.result(f"top five       median {found.top5:.2%}")
    if found.averages:
        console.result()
        console.table(
            ("averages of kept weights", "mean", "deviation over runs", "over steps"),
            [(name, f"{mean:.2%}", f"{runs:.2%}", f"{steps:.2%}") for name, mean, runs, steps in found.averages],
        )
    if not found.open:
        console.note("note: measured on private data; keep these figures to yourself")
    console.result()
    console.paragraph(f"One run: {statement.sentence}")
    if found.epsilon is None or not isinstance(statement, Statement):
        return
    one = "a person who" if statement.plan.users else "an example that"
    they = f"All {found.standing} runs on these data that stand there, planned in advance, are together"
    if not found.promises:
        they = f"{SEEDED} The plans of all {found.standing} that stand there, under secret keys, would together be"
    console.result(
        f"{they} ({rounded_up(found.epsilon)}, {found.delta!r})-differentially private under {found.adjacency} "
        f"adjacency for {one} is in each of them."
    )
    _show_other_runs(found, found.epsilon)
    if not found.open:
        console.result(UNCOVERED)


def _accuracies(found: Repeated) -> dict[str, Any]:
    """What was measured of classifiers."""
    return {
        "accuracy": found.median,
        "spread": found.spread,
        "accuracies": found.accuracies,
        "top5": found.top5,
        "averages": [
            {"weights": name, "accuracy": mean, "deviation_over_runs": runs, "deviation_over_steps": steps}
            for name, mean, runs, steps in found.averages
        ],
    }


def _recalls(found: Repeated) -> dict[str, Any]:
    """What was measured of embeddings."""
    return {
        "recall": found.mean,
        "far": found.runs[0].figures["far"],
        "spread": found.spread,
        "interval": found.interval,
        "recalls": found.values,
    }


def _promise(found: Curve | Foreseen[Any]) -> str:
    """What all runs of several budgets promise together, or what their plans would."""
    pair = f"({rounded_up(found.epsilon_of_all)}, {found.delta!r})"
    figures = f"{pair}-differentially private under {found.adjacency} adjacency"
    if found.promises:
        return f"whoever sees all of them is promised that they are together {figures}"
    return f"{SEEDED[0].lower()}{SEEDED[1:]} Their plans, run under secret keys, would together be {figures}"


def _show_other_runs(found: Curve | Foreseen[Any] | Repeated, epsilon: float) -> None:
    """What all of the owner's runs on these data come to, where that is more."""
    if found.epsilon_of_all_uses is not None and found.epsilon_of_all_uses > epsilon:
        console.result(
            f"With your other runs on these data that are known here: epsilon {rounded_up(found.epsilon_of_all_uses)}, "
            f"for {found.adjacency_of_all_uses} adjacency."
        )
