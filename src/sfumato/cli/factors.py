"""sfumato sweep --one-at-a-time: what each single change of a setting does (Mehta et al. 2022, table 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sfumato.cli import console
from sfumato.cli.choices import stem_of
from sfumato.cli.search_open import begin, line_of, plain, say_what_it_cost, together
from sfumato.cli.trials import (
    carried_out,
    check_kind,
    check_machine,
    check_trainable,
    data_for,
    decided,
    opened,
    setting_of,
)

if TYPE_CHECKING:
    from sfumato.cli.sweep import Sweep
    from sfumato.randomness import Dimension
    from sfumato.training.progress import Bars

FILE = "factors.json"


def factors(asked: Sweep, rules: Mapping[str, Dimension], mode: str, progress: Bars) -> int:
    """Train the base setting and every single change of it, and show the differences."""
    from sfumato.runs.directory import RunDirectory

    place = Path(asked.output or f"runs/{stem_of(asked.what)}-factors")
    setting = setting_of(asked)
    changes = _changes(rules)
    data = opened(setting)
    check_kind(asked, data, public=mode == "public")
    check_machine(setting)
    setting = replace(setting, fingerprint=data.source.fingerprint)
    plans = []
    for change in changes:  # refuses what could not be trained before anything is spent
        own = data_for(setting, data, change)
        plan, settings = decided(setting, own, change)
        check_trainable(own.source, plan, settings)
        plans.append(plan)
    told = together(plans, asked, data.source) if mode == "uncovered" else None
    if asked.dry_run:
        console.result("\n".join(_named(change) for change in changes))
        say_what_it_cost(mode, told)
        return 0
    record = {
        "search": mode,
        "factors": {name: repr(rule) for name, rule in rules.items()},
        "data": data.source.fingerprint,
    }
    begin(place, record, FILE)
    scored = len(data.validation)
    del data
    width = len(str(len(changes)))
    places = [place / f"{number:0{width}d}" for number in range(len(changes))]
    rows: list[dict[str, Any]] = [{} for _ in changes]
    progress.begin("one factor at a time", len(changes))
    found = carried_out(replace(setting, search=told), changes, places, processes=asked.processes or 1)
    for done, (number, figures) in enumerate(found, start=1):
        rows[number] = {"change": plain(changes[number]), **figures, "run": str(places[number])}
        progress.say(f"{_named(changes[number])}: {figures['accuracy']:.2%}")
        progress.advance(done)
    result: dict[str, Any] = {
        "rows": [row | {"difference": row["accuracy"] - rows[0]["accuracy"]} for row in rows],
        "scored_on": scored,
        "epsilon_of_all": told.epsilon if told else None,
        "delta": told.delta if told else plans[0].delta,
    }
    RunDirectory(place).write_json(FILE, {**record, **result}, private=True)
    if asked.json:
        console.as_json({"search": mode, **result})
        return 0
    _table(result["rows"])
    console.talk(f"scored on {scored:,} records that no run was trained on")
    say_what_it_cost(mode, told)
    return 0


def _changes(rules: Mapping[str, Dimension]) -> list[dict[str, Any]]:
    """No change, then each listed value by itself."""
    from sfumato._checks import SfumatoError
    from sfumato.randomness import Choice

    changes: list[dict[str, Any]] = [{}]
    for name, rule in rules.items():
        if not isinstance(rule, Choice):
            raise SfumatoError(f"{name} varies over a range", "list its values, to change them one at a time")
        changes += [{name: value} for value in rule.values]
    return changes


def _named(change: Mapping[str, Any]) -> str:
    return line_of(change) if change else "no change"


def _table(rows: Sequence[Mapping[str, Any]]) -> None:
    head = ("change", "accuracy", "difference", "epsilon", "run")
    lines = [
        (
            _named(row["change"]),
            f"{row['accuracy']:.2%}",
            f"{100 * row['difference']:+.2f}" if row["change"] else "",
            f"{row['epsilon']:.3f}",
            str(row["run"]),
        )
        for row in rows
    ]
    console.result()
    console.table(head, lines, texts=1)
    console.result()
