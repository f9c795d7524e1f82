"""An entry for the Differential Privacy Deployments Registry (Nanayakkara, Ghazi and Vadhan 2025, arXiv 2509.13509)."""

from __future__ import annotations

import datetime
import functools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sfumato._checks import SfumatoError, one_of

SCHEMA = Path(__file__).with_name("registry.schema.json")
CURATOR = ("data_curator_name", "data_curator_type")
ASKED = ("name", *CURATOR, "description", "intended_use", "data_product_region", "publication_date", "registry_authors")
"""The facts that the registry requires and a run's record cannot hold."""
FREE = (
    *("data_product_sector", "data_domain", "actors", "justification", "utility", "additional_information"),
    *("data_source_type", "data_source_type_details", "access_type_details", "model_name_details", "url_slug"),
)
"""Further facts that the owner may add. All others follow from the record."""
LONGEST = 2000
_EXAMPLES = {
    "data_curator_type": "Industry",
    "publication_date": "2026-03-01",
    "registry_authors": "'Jane Doe; John Roe'",
}


def registry_entry(known: Mapping[str, Any], facts: Mapping[str, str]) -> str:
    """The entry as YAML, valid by `SCHEMA`.

    Args:
        known: the fields that follow from the record, by name.
        facts: the owner's facts by name: all of `ASKED`, and any of `FREE`. Several authors are separated by
            semicolons.

    Raises:
        SfumatoError: an unknown field, one that the record decides, a value that the registry does not allow, or the
            names of the required facts that are missing.
    """
    for name, value in facts.items():
        _check(name, value)
    if missing := [name for name in ASKED if name not in facts]:
        example = _EXAMPLES.get(missing[0], "'...'")
        raise SfumatoError(
            f"the registry asks for facts that no run knows, and these are missing: {', '.join(missing)}",
            f"give each as --set FIELD=VALUE, such as --set {missing[0]}={example}",
        )
    values = {**known, **facts}
    values["registry_authors"] = [author.strip() for author in facts["registry_authors"].split(";")]
    values["data_curators"] = [{name: values.pop(name) for name in CURATOR}]
    values.setdefault("url_slug", _slug(facts["name"], facts["data_curator_name"], facts["publication_date"][:4]))
    wanted = [(name, field["tier"]) for _, name, field in _leaves(_schema()) if "tier" in field]
    complete = [tier for tier in (2, 3) if all(name in values for name, of in wanted if of <= tier)]
    return _yaml(_nested(_schema(), values | {"status": "Draft", "tier": max([1, *complete])}))


@functools.cache
def _schema() -> dict[str, Any]:
    return json.loads(SCHEMA.read_text("utf-8"))


def _leaves(schema: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Path, name and schema of each field that holds a value and no further fields."""
    for name, field in schema["properties"].items():
        if "properties" in field:
            yield from _leaves(field, f"{path}{name}.")
        elif "properties" in field.get("items", {}):
            yield from _leaves(field["items"], f"{path}{name}.")
        else:
            yield path, name, field


def _check(name: str, value: str) -> None:
    """Refuse a fact that is not the owner's to give, or that the registry does not allow."""
    one_of((*ASKED, *FREE), optional=False, remedy="the record decides all other fields", **{"--set": name})
    if not (value.strip() and value.isprintable() and len(value) <= LONGEST):
        raise SfumatoError(f"{name} must be one line of 1 to {LONGEST} characters", "give words, or leave it out")
    allowed = next(field.get("enum") for _, own, field in _leaves(_schema()) if own == name)
    if allowed is not None:
        one_of(tuple(allowed), optional=False, remedy=None, **{name: value})
    try:
        right = name != "publication_date" or bool(datetime.date.fromisoformat(value))
    except ValueError:
        right = False
    if not right or (name == "registry_authors" and not all(author.strip() for author in value.split(";"))):
        raise SfumatoError(f"{name} cannot be read, got {value!r}", f"write it as {_EXAMPLES[name]}")


def _slug(*parts: str) -> str:
    return "-".join(filter(None, re.split(r"[^a-z0-9]+", " ".join(parts).lower())))


def _nested(schema: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values in the order and at the places of the schema. Leaves out fields without a value."""
    found = {
        name: _nested(field, values) if "properties" in field else values.get(name)
        for name, field in schema["properties"].items()
    }
    return {name: value for name, value in found.items() if value not in (None, "", {})}


def _yaml(data: Any, indent: str = "") -> str:
    """YAML with strings in double quotes, and in block style if they have several lines."""
    lines = []
    for name, value in data.items():
        match value:
            case Mapping():
                lines.append(f"{indent}{name}:\n{_yaml(value, f'{indent}  ')}")
            case str() if "\n" in value:
                block = "".join(f"{indent}  {line}\n" if line else "\n" for line in value.splitlines())
                lines.append(f"{indent}{name}: |\n{block}")
            case str():
                lines.append(f"{indent}{name}: {json.dumps(value, ensure_ascii=False)}\n")
            case Sequence():
                lines.append(f"{indent}{name}: {json.dumps(value, ensure_ascii=False)}\n")
            case float() if "." not in (text := repr(value)):  # YAML 1.1 reads 1e-05 as text
                lines.append(f"{indent}{name}: {text.replace('e', '.0e')}\n")
            case _:
                lines.append(f"{indent}{name}: {value}\n")
    return "".join(lines)
