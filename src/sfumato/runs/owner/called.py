"""What the owner calls a data set: a plain word, by which runs on it are counted together whatever its numbers are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from sfumato._checks import SfumatoError

NAMED = "name:"
"""What stands before a name among the places of a data set."""
BY_NUMBERS = (
    "known by their numbers alone: the same records in another normalisation count as other ones, unless all such runs "
    "give them one name (`name` of `private_steps`)"
)
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


def checked(what: str, name: str) -> str:
    """The name of a data set, or of its budget; refused where it is no plain word."""
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    raise SfumatoError(
        f"{what} must be a name of letters, digits, '_', '-' and '.', got {name!r}", "give one such as faces"
    )


def place(name: str) -> str:
    """A name among the places of a data set."""
    return NAMED + checked("name", name)


def materials_of(entry: Mapping[str, Any]) -> set[str]:
    """By what a line of the list of uses knows its data again."""
    return {entry["data"], entry.get("pixels")} - {None}


def places_of(entry: Mapping[str, Any]) -> set[str]:
    """Where they were read from, and what they are called."""
    return {entry["place"], *entry["origins"]} - {None}


def together(
    entries: Iterable[Mapping[str, Any]], materials: Iterable[str], places: Iterable[str]
) -> tuple[set[str], set[str]]:
    """These materials and places, and those of all that bears one name with them, be it by way of another line."""
    same, where = set(materials), set(places)
    named = [(materials_of(one), names) for one in entries if (names := _names(places_of(one)))]
    while more := [one for one in named if one[0] & same or one[1] & where]:
        named = [one for one in named if one not in more]
        same.update(*(one[0] for one in more))
        where.update(*(one[1] for one in more))
    return same, where


def _names(places: Iterable[str]) -> set[str]:
    return {one for one in places if one.startswith(NAMED)}
