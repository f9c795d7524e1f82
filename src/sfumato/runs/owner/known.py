"""How data are known again: by keyed codes of what is stored and of its pixels, by their places, and by a name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sfumato._checks import SfumatoError
from sfumato.data import Source, own_codes
from sfumato.randomness import owner_key
from sfumato.runs.owner.lines import Used

NAMED = "name:"
"""What stands before a name among the places of a data set: what its owner calls it, whatever its numbers are."""
BY_NUMBERS = (
    "known by their numbers alone: the same records in another normalisation count as other ones, unless all such runs "
    "give them one name (`name` of `private_steps`)"
)
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True)
class Data:
    """What private data are known again by.

    Args:
        materials: `Source.materials`: of what is stored, and of the pixels where these are known.
        places: `Source.places`: where they were read from, and what they are called.
        users: `Source.assignment`: whose record each one is, of a promise for users.
        codes: gives the codes uint8 (N, 32) of the records; None where there are none.
    """

    materials: tuple[str, ...]
    places: tuple[str, ...] = ()
    users: str = ""
    codes: Callable[[], np.ndarray] | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, source: Source) -> Data:
        """Those of a source. Records held out to score on are among the codes: what a private selection says of its
        scores is in its promise."""

        def codes() -> np.ndarray:
            parts = [part for part in (source.train, source.held_out) if part is not None]
            return np.concatenate([own_codes(part, owner_key()) for part in parts])

        return cls(tuple(source.materials), tuple(source.places), source.assignment, codes)

    @classmethod
    def recorded(cls, record: Mapping[str, Any]) -> Data:
        """Those of a run with this settings.json."""
        materials = tuple(record["data"][name] for name in ("material", "pixels") if record["data"].get(name))
        return cls(materials, tuple(record["places"]), record.get("assignment", ""))

    def among(self, lines: Iterable[Used]) -> list[tuple[Used, bool]]:
        """The lines about these data, about what was then at one of their places, and about all that bears one name
        with them, be it by way of another line; and whether it is the data themselves that are known again."""
        lines = list(lines)
        same, where = set(self.materials), set(self.places)
        named = [one for one in lines if any(place.startswith(NAMED) for place in one.places)]
        while more := [one for one in named if same.intersection(one.data) or where.intersection(one.places)]:
            named = [one for one in named if one not in more]
            same.update(*(one.data for one in more))
            where.update(*(one.places for one in more))
        found = [one for one in lines if same.intersection(one.data) or where.intersection(one.places)]
        return [(one, not set(self.materials).isdisjoint(one.data)) for one in found]


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
