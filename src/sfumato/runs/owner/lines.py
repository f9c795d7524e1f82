"""The lines of the owner's store: a small record for each kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from typing import Any

from sfumato.privacy import PrivacyFilter, PrivacyPlan, PrivateChoice
from sfumato.privacy.unit import Example

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
        users: `Source.assignment`: the assignment of records to users; empty if the promise is for examples.
        figures: epsilon of the published figures, for each unit in the test part; None if none are published.
        seeded: whether the randomness follows from a seed. The plan counts, although the run promises nothing.
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
        """The unit of the promise: "example" or "user"."""
        return Example.name if self.plan is None else self.plan.unit.name

    @property
    def adjacency(self) -> str:
        """The adjacency under which the promise holds."""
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


_RELEASES = {
    RUN: PrivacyPlan.from_dict,
    CHOICE: lambda data: PrivateChoice(**data),
}
