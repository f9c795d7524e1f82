"""A search whose runs are all kept, each with its own statement: on public data, or not covered by any promise."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sfumato.cli import console, space
from sfumato.cli.choices import NOT_IN_RECIPES, stem_of
from sfumato.cli.private import PrivateChoices
from sfumato.cli.recipe import MATERIALS
from sfumato.cli.trials import carried_out, check_kind, opened, plan_for, setting_of, try_each

if TYPE_CHECKING:
    from sfumato.cli.sweep import Sweep
    from sfumato.data import Source
    from sfumato.privacy import PrivacyPlan, Search
    from sfumato.randomness import DiceKey, Dimension
    from sfumato.training.progress import Bars

FILE = "sweep.json"
PLOT = "sweep.svg"
BEST = "best.toml"
KEY = "search.key"
MOST_DRAWS = 20


def search(asked: Sweep, rules: Mapping[str, Dimension], mode: str, progress: Bars) -> int:
    """Train every setting, and show them by their accuracy on the validation part."""
    from sfumato._files import write
    from sfumato.report import swept
    from sfumato.runs.directory import RunDirectory

    place = Path(asked.output or f"runs/{stem_of(asked.what)}-sweep")
    setting = setting_of(asked)
    changes = _changes(asked, rules, place)
    data = opened(setting)
    check_kind(asked, data, public=mode == "public")
    try_each(setting, data, rules)
    plans = [plan_for(setting, data, change) for change in changes]
    cost = together(plans, asked, data.source)
    told = cost if mode == "uncovered" else None
    if asked.dry_run:
        return _foretell(asked, changes, plans, told)
    record = {
        "search": mode,
        "space": {name: repr(rule) for name, rule in rules.items()},
        "runs": len(changes),
        "data": data.source.fingerprint,
    }
    begin(place, record, FILE)
    materials = dict(zip(MATERIALS, data.source.materials, strict=False))
    scored = len(data.validation)
    del data  # each process reads its own
    width = len(str(len(changes)))
    places = [place / f"{number:0{width}d}" for number in range(1, len(changes) + 1)]
    rows: list[dict[str, Any]] = [{} for _ in changes]
    progress.begin("searching", len(changes))
    setting = replace(setting, search=told, fingerprint=record["data"])
    found = carried_out(setting, changes, places, processes=asked.processes or 1)
    for done, (number, figures) in enumerate(found, start=1):
        rows[number] = {**plain(changes[number]), **figures, "run": str(places[number])}
        progress.say(f"{line_of(changes[number])}: {figures['accuracy']:.2%}")
        progress.advance(done, f"best {max(row['accuracy'] for row in rows if row):.1%}")
    # What has diverged comes last, however often its only answer is right.
    ranked = sorted(rows, key=lambda row: (row["loss"] is not None, row["accuracy"]), reverse=True)
    best = changes[rows.index(ranked[0])]
    result = {
        "rows": ranked,
        "best": plain(best),
        "scored_on": scored,
        "epsilon_of_all": told.epsilon if told else None,
        "delta": told.delta if told else plans[0].delta,
    }
    RunDirectory(place).write_json(FILE, {**record, **result}, private=True)
    write(place / PLOT, swept(ranked, list(rules)).encode(), private=True)
    write(place / BEST, _recipe(asked, best, cost, materials).encode(), private=True)
    if asked.json:
        console.as_json({"search": mode, **result})
        return 0
    _table(ranked, list(rules))
    console.talk(f"scored on {scored:,} records that no run was trained on")
    say_what_it_cost(mode, told)
    console.talk(f"{place / PLOT}   what was found, setting by setting")
    console.talk(f"sfumato train {place / BEST}   trains on the whole training part with the best settings")
    return 0


def _changes(asked: Sweep, rules: Mapping[str, Dimension], place: Path) -> list[dict[str, Any]]:
    """The settings of each run: the whole grid, or as many draws as were asked for, the same again after a cut."""
    from sfumato.randomness import DiceKey, settings_of

    if asked.candidates is None:
        return space.grid(rules)
    if asked.seed is not None:
        key = DiceKey.from_seed(asked.seed, "search")
    elif (place / KEY).exists():
        key = DiceKey.load(place / KEY)
    else:
        key = DiceKey.fresh()
        if not asked.dry_run:
            _save(key, place)
    changes: list[dict[str, Any]] = []
    for number in range(MOST_DRAWS * asked.candidates):  # the same settings twice would cost and tell nothing
        change = settings_of(number, rules, key)
        if change not in changes:
            changes.append(change)
        if len(changes) == asked.candidates:
            break
    return changes


def _save(key: DiceKey, place: Path) -> None:
    from sfumato._files import writing

    with writing(place):
        place.mkdir(parents=True, exist_ok=True)
        key.save(place / KEY)


def begin(place: Path, record: Mapping[str, Any], file: str) -> None:
    """Write what the search is, or refuse to go on with another one."""
    from sfumato._checks import SfumatoError
    from sfumato._files import writing
    from sfumato.runs import pins
    from sfumato.runs.directory import RunDirectory

    run = RunDirectory(place)
    if (place / file).exists():
        before = run.read_json(file)
        pins.compare(
            "search",
            {name: before.get(name) for name in record},
            record,
            remedy="give the options that the search began with, or another --output",
        )
        return
    strange = [path.name for path in place.iterdir() if path.name != KEY] if place.is_dir() else []
    if strange or (place.exists() and not place.is_dir()):
        raise SfumatoError(f"{place} exists and holds no search", "give --output a directory that is empty or new")
    with writing(place):
        place.mkdir(parents=True, exist_ok=True)
    run.write_json(file, dict(record), private=True)


def together(plans: Sequence[PrivacyPlan], asked: Sweep, source: Source) -> Search:
    """What all runs cost together by composition, with those of the search that the recipe came from."""
    from sfumato.cli import recipe
    from sfumato.privacy import Search
    from sfumato.runs import uses

    epsilon, delta = uses.together(list(plans))
    runs = Search(runs=len(plans), epsilon=epsilon, delta=delta)
    behind = recipe.search_behind(asked.what, asked.source, source)
    return runs if behind is None else behind + runs


def _foretell(
    asked: Sweep, changes: Sequence[Mapping[str, Any]], plans: Sequence[PrivacyPlan], told: Search | None
) -> int:
    rows = [
        {**plain(change), "steps": plan.steps, "batch_size": plan.expected_batch_size, "sigma": plan.noise_multiplier}
        for change, plan in zip(changes, plans, strict=True)
    ]
    if asked.json:
        console.as_json({"runs": rows, "together": asdict(told) if told else None})
        return 0
    for change, row in zip(changes, rows, strict=True):
        console.result(f"{line_of(change)}: {row['steps']} steps, batch {row['batch_size']}, noise {row['sigma']:g}")
    say_what_it_cost("uncovered" if told else "public", told)
    console.talk(f"nothing was spent; without --dry-run this would train {len(rows)} runs")
    return 0


def _table(rows: Sequence[Mapping[str, Any]], varied: Sequence[str]) -> None:
    head = [name.replace("_", " ") for name in (*varied, "accuracy", "epsilon", "run")]
    lines = [
        [
            *(f"{row[name]:.4g}" if isinstance(row[name], float) else str(row[name]) for name in varied),
            *(f"{row['accuracy']:.2%}", f"{row['epsilon']:.3f}", row["run"]),
        ]
        for row in rows
    ]
    console.result()
    console.table(head, lines)
    console.result()


def say_what_it_cost(mode: str, told: Search | None) -> None:
    """What all runs of an open search cost together, if anything."""
    from sfumato.privacy.statement import rounded_up

    if told is None:
        console.result("The data are public, so the search costs nothing.")
    else:
        console.result(
            f"The search is not covered by the promise of any of its {told.runs} runs. Together they come to "
            f"({rounded_up(told.epsilon)}, {told.delta!r})-differential privacy, and their scores have no noise."
        )
    console.result()


def _recipe(asked: Sweep, best: Mapping[str, Any], cost: Search, materials: Mapping[str, str]) -> str:
    """The best settings as a recipe for the whole training part.

    The statement of its run speaks of the search where the data are private: those with these keyed materials.
    """
    left_out = {*NOT_IN_RECIPES, "output", "seed", "public"}
    known = [field.name for field in fields(PrivateChoices) if field.name not in left_out]
    defaults = {field.name: field.default for field in fields(PrivateChoices)}
    chosen = {name: getattr(asked, name) for name in known if getattr(asked, name) != defaults[name]} | dict(best)
    lines = [
        "# The best settings of a search, for the whole training part.",
        "# Chosen by exact scores: on private data no epsilon covers that, and one more run costs more.",
        "",
    ]
    lines += [f"{name.replace('_', '-')} = {_toml(value)}" for name, value in chosen.items()]
    behind = asdict(cost) | dict(materials)
    lines += ["", "[search]", *(f"{name} = {_toml(value)}" for name, value in behind.items())]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)


def plain(change: Mapping[str, Any]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in change.items()}


def line_of(change: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name.replace('_', ' ')} {f'{value:.4g}' if isinstance(value, float) else value}"
        for name, value in change.items()
    )
