"""What the lines of the owner's store say: one small record for each kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from typing import Any

from sfumato.privacy import PrivacyFilter, PrivacyPlan, PrivateChoice, PrivateSelection
from sfumato.privacy.unit import Example

RUN, SEARCH, CHOICE = "run", "search", "choice"
BUDGET, CODES, OPENING = "budget", "codes", "opening"

Release = PrivacyPlan | PrivateSelection | PrivateChoice


def now() -> str:
    """The date of a line, in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True, kw_only=True)
class Dated:
    """Says when its line was written, in UTC."""

    date: str = field(default_factory=now)


@dataclass(frozen=True, kw_only=True)
class Used(Dated):
    """Private data are about to be used: by a run, a private search, or a choice by test images.

    Under a budget the line is its reservation too, of the whole plan.

    Args:
        run: the identity of what uses them. One that goes on may have several lines, all of one plan.
        use: what it releases.
        data: `Source.materials`: keyed codes of the data.
        places: `Source.places`: where they were read from.
        name: what the owner reads of it: its directory, by the last two names of the path.
        users: `Source.assignment`: whose record each one is; empty where the promise is for examples.
        figures: epsilon of what it publishes of test images; None where it publishes nothing.
        seeded: whether its randomness follows from a seed: its plan counts, and it promises nothing.
        budget: the name of the budget that it is reserved in; None for none.
        cost: what it takes of that budget's limit.
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
        """What uses them: "run", "search" or "choice"."""
        return {PrivacyPlan: RUN, PrivateSelection: SEARCH, PrivateChoice: CHOICE}[type(self.use)]

    @property
    def plan(self) -> PrivacyPlan | None:
        """What each training releases; None of a choice."""
        if isinstance(self.use, PrivateChoice):
            return None
        return self.use.plan if isinstance(self.use, PrivateSelection) else self.use

    @property
    def unit(self) -> str:
        """What it promises for: "example" or "user"."""
        return Example.name if self.plan is None else self.plan.unit.name

    @property
    def adjacency(self) -> str:
        """The relation under which it holds."""
        return "add-or-remove" if self.plan is None else self.plan.adjacency

    @property
    def delta(self) -> float:
        """Of it by itself."""
        return 0.0 if self.plan is None else self.plan.delta

    @property
    def epsilon(self) -> float:
        """Of it by itself, at its own delta; of a choice for each test image."""
        return self.use.epsilon if isinstance(self.use, PrivateChoice) else self.use.epsilon()

    @property
    def of_tests(self) -> float | None:
        """What it costs each test image: by its published figures, or as a choice."""
        return self.use.epsilon if isinstance(self.use, PrivateChoice) else self.figures


@dataclass(frozen=True, kw_only=True)
class BudgetSet(Dated):
    """A budget was set, or given another total.

    Args:
        name: of the budget.
        filter: its total from then on, and how plans count against it.
        lost: how many lines the store had lost when it was first set: what it counts came later.
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
    """A list of codes of records has so many of them.

    Args:
        path: of the list, in the owner's folder.
        count: all that it has.
    """

    path: str
    count: int
    kind = CODES


@dataclass(frozen=True, kw_only=True)
class Opened(Dated):
    """An unseeded run was opened for further steps.

    Args:
        run: its identity.
        salt: of this opening.
    """

    run: str
    salt: str
    kind = OPENING


Line = Used | BudgetSet | CodesListed | Opened


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
    """What `to_dict` wrote.

    Errors: `KeyError`, `TypeError` or `ValueError` (`SfumatoError` among these) for what it did not write.
    """
    known = dict(data)
    kind = known.pop("kind")
    if kind in _RELEASES:
        known |= {"use": _RELEASES[kind](known["use"]), "data": tuple(known["data"]), "places": tuple(known["places"])}
        return Used(**known)
    if kind == BUDGET:
        known["filter"] = PrivacyFilter.from_dict(known["filter"])
        return BudgetSet(**known)
    return {CODES: CodesListed, OPENING: Opened}[kind](**known)


_RELEASES = {
    RUN: PrivacyPlan.from_dict,
    SEARCH: PrivateSelection.from_dict,
    CHOICE: lambda data: PrivateChoice(**data),
}
