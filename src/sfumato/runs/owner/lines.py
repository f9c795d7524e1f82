"""The lines of the owner's store, and the keys by which its data are recognised."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from typing import Any

import numpy as np

from sfumato._checks import SfumatoError
from sfumato.data import Source, own_codes
from sfumato.privacy import PrivacyFilter, PrivacyPlan, PrivateChoice
from sfumato.privacy.unit import Example
from sfumato.randomness import owner_key

RUN, CHOICE = "run", "choice"
BUDGET, CODES, OPENING = "budget", "codes", "opening"

Release = PrivacyPlan | PrivateChoice


def now() -> str:
    """The current date and time in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True, kw_only=True)
class Dated:
    """A line with the date on which it was written, in UTC."""

    date: str = field(default_factory=now)


@dataclass(frozen=True, kw_only=True)
class DataUse(Dated):
    """A use of private data that is about to start: a run, or a choice by test images.

    Under a budget the line also reserves the whole plan.

    Args:
        run: the identity of the use. A run that resumes may have several lines, all with the same plan.
        use: what it releases.
        data: `Source.data_digests`: keyed codes of the data.
        places: `Source.places`: where the data were read from.
        name: the name shown to the owner: the last two parts of the run directory's path.
        users: `Source.assignment`: the assignment of records to users; empty if the guarantee is for examples.
        figures: epsilon of the published figures, for each unit in the test part; None if none are published.
        seeded: whether the randomness follows from a seed. The plan counts, although the run has no guarantee.
        budget: the name of the budget in which it is reserved; None for none.
        cost: the part of that budget's limit that it takes.
    """

    run: str
    use: Release
    data: tuple[str, ...]
    places: tuple[str, ...] = ()
    name: str = ""
    users: str = ""
    figures: float | None = None
    seeded: bool = False
    budget: str | None = None
    cost: float = 0.0

    @property
    def kind(self) -> str:
        """The kind of use: "run" or "choice"."""
        return CHOICE if isinstance(self.use, PrivateChoice) else RUN

    @property
    def plan(self) -> PrivacyPlan | None:
        """The plan of the training; None for a choice."""
        return None if isinstance(self.use, PrivateChoice) else self.use

    @property
    def unit(self) -> str:
        """The unit of the guarantee: "example" or "user"."""
        return Example.name if self.plan is None else self.plan.unit.name

    @property
    def adjacency(self) -> str:
        """The adjacency under which the guarantee holds."""
        return "add-or-remove" if self.plan is None else self.plan.adjacency

    @property
    def delta(self) -> float:
        """Delta of this use alone."""
        return 0.0 if self.plan is None else self.plan.delta

    @property
    def epsilon(self) -> float:
        """Epsilon of this use alone at its own delta; for a choice, epsilon for each test image."""
        return self.use.epsilon if isinstance(self.use, PrivateChoice) else self.use.epsilon()

    @property
    def test_epsilon(self) -> float | None:
        """Epsilon for each unit in the test part, of published figures or of a choice; None if there is neither."""
        return self.use.epsilon if isinstance(self.use, PrivateChoice) else self.figures


@dataclass(frozen=True, kw_only=True)
class BudgetSet(Dated):
    """A budget was set, or its total was changed.

    Args:
        name: the name of the budget.
        filter: the total from then on, and the rule by which plans count against it.
        lost: the number of lines that the store had lost when the budget was first set. Its reservations came later.
    """

    name: str
    filter: PrivacyFilter
    lost: int = 0
    kind = BUDGET

    @property
    def epsilon(self) -> float:
        """The total."""
        return self.filter.epsilon


@dataclass(frozen=True, kw_only=True)
class CodesListed(Dated):
    """The length of a list of record codes.

    Args:
        path: the path of the list in the owner's folder.
        count: the number of codes on the list.
    """

    path: str
    count: int
    kind = CODES


@dataclass(frozen=True, kw_only=True)
class RunOpened(Dated):
    """An unseeded run was opened for further steps.

    Args:
        run: the identity of the run.
        salt: the salt of this opening.
        step: the number of steps that were paid before it, in the directory that was opened.
        copy: whether another copy of the run had the opening before it.
    """

    run: str
    salt: str
    step: int = 0
    copy: bool = False
    kind = OPENING


Line = DataUse | BudgetSet | CodesListed | RunOpened


def to_dict(line: Line) -> dict[str, Any]:
    """A line as plain data."""
    known = {one.name: getattr(line, one.name) for one in fields(line)}
    for name, value in known.items():
        if isinstance(value, PrivateChoice):
            known[name] = asdict(value)
        elif hasattr(value, "to_dict"):
            known[name] = value.to_dict()
        elif isinstance(value, tuple):
            known[name] = list(value)
    return {"kind": line.kind, **known}


def from_dict(data: Mapping[str, Any]) -> Line:
    """The line that `to_dict` wrote.

    Errors: `KeyError`, `TypeError` or `ValueError` (including `SfumatoError`) for any other data.
    """
    known = dict(data)
    kind = known.pop("kind")
    if kind in _RELEASES:
        known |= {"use": _RELEASES[kind](known["use"]), "data": tuple(known["data"]), "places": tuple(known["places"])}
        return DataUse(**known)
    if kind == BUDGET:
        known["filter"] = PrivacyFilter.from_dict(known["filter"])
        return BudgetSet(**known)
    return {CODES: CodesListed, OPENING: RunOpened}[kind](**known)


_RELEASES = {RUN: PrivacyPlan.from_dict, CHOICE: lambda data: PrivateChoice(**data)}


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
        users: `Source.assignment`: the assignment of records to users, for a guarantee for users.
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
