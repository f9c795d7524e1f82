"""Writes a run's options as a recipe: a TOML file with which the same verb starts a run with the same settings."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from sfumato._choices import choices_of
from sfumato.data.declared import Purpose
from sfumato.data.paths import expanded, place_of

if TYPE_CHECKING:
    from sfumato.data import SourceSpec

OPTIONS = "options"
PATHS, SOURCES = ("pretrained",), ("public_data",)
"""Options that name a file, or a source. They are written so that the recipe works from any folder."""
OWN = "module"
"""The name of a model that the caller gave as an object."""
HEAD = """\
# The options of this run. sfumato {verb} FILE starts another run with the same settings. On private data that run
# costs privacy again: the epsilons of both add up. Options that are absent here followed the default rules.
"""
SEEDED = """\
# With this seed the run has no guarantee. Remove it for a model with one.
"""


def request_of(spec: SourceSpec, *choices: Any) -> dict[str, Any]:
    """The request of a run, for its record: its source, and its options if a recipe can express all of them.

    Args:
        choices: dataclasses or mappings of options by name; None for an option that was left out.
    """
    source = spec.record()
    return {"source": source} | ({} if (options := _options(spec, source, choices)) is None else {OPTIONS: options})


def recipe_text(record: Mapping[str, Any], verb: str) -> str | None:
    """The recipe of a run, from its record and its verb; None if a recipe cannot express its options.

    If the settings came from a search that no guarantee covers, the recipe records the search and this run as a part
    of it. A run with this recipe on the same data then reports it.
    """
    options = record["request"].get(OPTIONS)
    if options is None:
        return None
    lines = [*(f"{name.replace('_', '-')} = {to_toml(value)}" for name, value in options.items())]
    search = (record.get("circumstances") or {}).get("search")
    if search is not None:
        of_data = {name: record["data"][name] for name in ("material", "pixels") if record["data"].get(name)}
        lines += ["", "[search]", *(f"{name} = {to_toml(value)}" for name, value in {**search, **of_data}.items())]
    about = ["", "[about]", f"command = {to_toml(f'sfumato {verb}')}"]
    head = HEAD.format(verb=verb) + (SEEDED if "seed" in options else "")
    return "\n".join([head, *lines, *about, ""])


def to_toml(value: Any) -> str:
    """A value as TOML.

    >>> to_toml("it's"), to_toml((1, 2.5)), to_toml(True)
    ('"it\\'s"', '[1, 2.5]', 'true')
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)


def _options(spec: SourceSpec, source: Mapping[str, Any], choices: tuple[Any, ...]) -> dict[str, Any] | None:
    """All given options by name; None if a recipe cannot express one of them."""
    declared = {name: source.get(name, value) for name, value in spec.declared.given.items()}
    public = declared.pop("public", None)
    named = {name: value for name, value in declared.items() if name not in choices_of(Purpose)}
    if public is not None:
        named["public" if public else "private"] = True
    for part in choices:
        values = {field.name: getattr(part, field.name) for field in fields(part)} if is_dataclass(part) else dict(part)
        named |= {name: value for name, value in values.items() if value is not None}
    spelt = {name: _toml_value(name, value) for name, value in {"source": source["spec"], **named}.items()}
    return None if named.get("model") == OWN or None in spelt.values() else spelt


def _toml_value(name: str, value: Any) -> Any:
    """A value as written in a recipe; None for an object."""
    match value:
        case str() if name in PATHS and os.path.exists(expanded(value)):
            return str(expanded(value).resolve())
        case str() if name in SOURCES:
            return place_of(value)
        case bool() | int() | float() | str():
            return value
        case tuple() | list() if all(isinstance(entry, (int, float, str)) for entry in value):
            return list(value)
        case Mapping():
            return [f"{key}={share!r}" for key, share in value.items()]
    return None
