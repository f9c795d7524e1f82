"""What was promised, in the statement's own words and in figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sfumato.privacy.statements.statement import rounded_up
from sfumato.report.plots.attack import Attack
from sfumato.report.sections.not_covered import grouped
from sfumato.report.sections.numbers import significant


def promise(statement: Mapping[str, Any], attack: Attack | None) -> dict[str, Any]:
    """The section, for the page's template."""
    figures = [("epsilon", "none")]
    if statement["epsilon"] is not None:
        figures = [
            ("epsilon", rounded_up(float(statement["epsilon"]))),
            ("delta", significant(float(statement["delta"]))),
        ]
    figures += [(key, str(statement[key])) for key in ("unit", "adjacency") if statement.get(key)]
    seeded = bool(statement.get("circumstances", {}).get("seeded"))
    plain = [str(line) for line in statement["plain"]]
    # The warning of a seeded run leads its page; nothing that sounds like a promise is set larger than it.
    if attack is not None:
        plain.insert(0, attack.words)
    lead = "" if seeded or not plain else plain.pop(0)
    return {
        "seeded": seeded,
        "scope": _scope(statement),
        "lead": lead,
        "plain": plain,
        "figures": figures,
        "ended_early": _ended_early(statement),
        "strength": "" if seeded or attack is None else _strength(statement),
        "not_covered": grouped([str(line) for line in statement["not_covered"]]),
        "sentence": statement["sentence"],
        "sources": [(key, str(statement[key])) for key in ("theorem", "accountant", "citation") if statement.get(key)],
    }


def _scope(statement: Mapping[str, Any]) -> str:
    """Of what and at which delta epsilon speaks."""
    if statement["epsilon"] is None:
        return ""
    unit = f"for each single {statement['unit']}, " if statement.get("unit") else ""
    return f"{unit}at delta {significant(float(statement['delta']))}; smaller is safer"


def _strength(statement: Mapping[str, Any]) -> str:
    """How an epsilon like this one is usually called."""
    epsilon = float(statement["epsilon"])
    word = "strong" if epsilon <= 1 else "reasonable" if epsilon <= 10 else "weak, if any"
    return (
        f"Protection at such an epsilon is called {word} by Ponomareva et al. 2023, who draw the lines at 1 and at 10. "
        "It is for you to say whether it is enough for these data."
    )


def _ended_early(statement: Mapping[str, Any]) -> str:
    taken, planned = statement.get("steps_taken"), statement.get("steps_planned")
    if taken is None or planned is None or taken >= planned:
        return ""
    return f"The run ended after {taken:,} of {planned:,} steps. The promise stays the one of the whole plan."
