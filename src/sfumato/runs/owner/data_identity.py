"""How data are recognised: by keyed codes of the stored bytes and of the pixels, by location, and by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sfumato._checks import SfumatoError
from sfumato.data import Source, own_codes
from sfumato.randomness import owner_key
from sfumato.runs.owner.lines import DataUse

NAMED = "name:"
"""The prefix of a name among the places of a data set. The owner gives the name; it does not depend on the numbers."""
BY_NUMBERS = (
    "known by their numbers alone: the same records in another normalisation count as other ones, unless all such runs "
    "give them one name (`name` of `private_steps`)"
)
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True)
class DataIdentity:
    """The keys by which private data are recognised.

    Args:
        data_digests: `Source.data_digests`: keyed codes of the stored bytes, and of the pixels if they are known.
        places: `Source.places`: where the data were read from, and their name.
        users: `Source.assignment`: the assignment of records to users, for a promise for users.
        codes: returns the codes uint8 (N, 32) of the records; None if there are none.
    """

    data_digests: tuple[str, ...]
    places: tuple[str, ...] = ()
    users: str = ""
    codes: Callable[[], np.ndarray] | None = field(default=None, repr=False, compare=False)

    @classmethod
    def from_source(cls, source: Source) -> DataIdentity:
        """The keys of a source. The codes include the records held out for scoring."""

        def codes() -> np.ndarray:
            parts = [part for part in (source.train, source.held_out) if part is not None]
            return np.concatenate([own_codes(part, owner_key()) for part in parts])

        return cls(tuple(source.data_digests), tuple(source.places), source.assignment, codes)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> DataIdentity:
        """The keys of a run with this settings.json."""
        materials = tuple(record["data"][name] for name in ("material", "pixels") if record["data"].get(name))
        return cls(materials, tuple(record["places"]), record.get("assignment", ""))

    def matching(self, lines: Iterable[DataUse]) -> list[tuple[DataUse, bool]]:
        """The lines about these data, about data that were at one of their places, and about data of the same name,
        even if only through another line; each with whether the data themselves were recognised."""
        lines = list(lines)
        same, where = set(self.data_digests), set(self.places)
        named = [one for one in lines if any(place.startswith(NAMED) for place in one.places)]
        while more := [one for one in named if same.intersection(one.data) or where.intersection(one.places)]:
            named = [one for one in named if one not in more]
            same.update(*(one.data for one in more))
            where.update(*(one.places for one in more))
        found = [one for one in lines if same.intersection(one.data) or where.intersection(one.places)]
        return [(one, not set(self.data_digests).isdisjoint(one.data)) for one in found]


def same_people(one: str, other: str) -> bool:
    """Whether two assignments to users put the same records together, by either code of each record."""
    first, second = ({text[place : place + 64] for place in range(0, len(text), 64)} for text in (one, other))
    return one == other or not first.isdisjoint(second)


def check_name(what: str, name: str) -> str:
    """The name of a data set or of its budget, if it is a plain word."""
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    raise SfumatoError(
        f"{what} must be a name of letters, digits, '_', '-' and '.', got {name!r}", "give one such as faces"
    )


def place(name: str) -> str:
    """The place that stands for a data set's name."""
    return NAMED + check_name("name", name)
