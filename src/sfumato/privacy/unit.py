"""The unit of privacy: the records that one guarantee covers, and the data sets that are neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from sfumato._checks import SfumatoError, positive_integer, true_or_false, within

Adjacency = Literal["add-or-remove", "zero-out"]
Drawn = Literal["examples", "users", "clients"]


class Neighbours(NamedTuple):
    """The meaning of an adjacency, in plain words.

    Args:
        without: the unit's state in the other of two neighbouring data sets, after "as if it had ...".
        difference: what differs between the two data sets.
        remark: what else a reader must know about the adjacency.
    """

    without: str
    difference: str
    remark: str = ""


ADJACENCIES: dict[str, Neighbours] = {
    "add-or-remove": Neighbours("never been used", "one example's presence"),
    "zero-out": Neighbours(
        "contributed nothing",
        "what one example contributes",
        "This is zero-out adjacency: of two neighbouring data sets, one lets an example contribute as it is, and the "
        "other lets it contribute nothing. Its place and the number of examples stay known. Under add-or-remove "
        "adjacency the example may be missing altogether. An epsilon for one adjacency says nothing about the other.",
    ),
}
"""Neighbouring data sets if the unit is an example."""

PERSON_ADJACENCIES: dict[str, Neighbours] = {
    "add-or-remove": Neighbours("never been used", "one person's presence"),
    "zero-out": Neighbours(
        "contributed nothing",
        "what one person contributes",
        "This is zero-out adjacency: of two neighbouring data sets, one lets a person contribute, and the other lets "
        "the person contribute nothing. The person's place and the numbers of persons and of examples stay known. "
        "Under add-or-remove adjacency the person may be missing altogether. An epsilon for one adjacency says nothing "
        "about the other.",
    ),
}


@dataclass(frozen=True)
class Example:
    """One record. The guarantee covers each record by itself, whoever it is about.

    A participating example contributes one vector to a step's sum, of norm at most C, and moves the sum by at most C.
    """

    name: ClassVar[str] = "example"
    drawn: ClassVar[Drawn] = "examples"
    per_step: ClassVar[None] = None
    sensitivity: ClassVar[float] = 1.0
    drawn_one: ClassVar[str] = "example"
    neighbours: ClassVar[dict[str, Neighbours]] = ADJACENCIES

    def check(self, population: int) -> None:
        """Accepts every population."""

    def count(self, population: int) -> int:
        """The number of units."""
        return population


@dataclass(frozen=True, kw_only=True)
class User:
    """All records of one user. The guarantee covers each person, provided that each has one name in the data.

    Args:
        at_most: G, the number of records kept of each user; None for all of them.
        per_step: k, the number of kept records that a user shows in a step, drawn anew for each step; None for all.
        clients: users are assigned independently to the step's virtual clients, and the update of each client, which
            its users share, is clipped to C. Otherwise the update of each user is clipped to C as a whole.
        users: with `grouped`, the declared number of users. Otherwise None: it is the plan's population.
        grouped: with `clients`: the groups of users are fixed and public, and each group is sampled as a whole. Then
            the plan's population is the number of groups.

    **Guarantee.** The L2 distance, in units of C, by which one user moves a step's sum, whatever the others do, is at
    most `sensitivity`:

    - 1 without clients: the user's own vector. Which records a user shows must depend on that user alone, so that no
      other vector changes. The vector is clipped whatever is shown, so `per_step` changes no epsilon.
    - 2 with clients. One user's absence, or zero contribution, replaces one client's clipped vector by another. No
      other client changes, because users are assigned independently (or, under zero-out adjacency, by who is sampled,
      which does not depend on anybody's contribution).

    >>> User(at_most=10, per_step=1).sensitivity, User(clients=True).sensitivity
    (1.0, 2.0)
    """

    at_most: int | None = None
    per_step: int | None = None
    clients: bool = False
    users: int | None = None
    grouped: bool = False
    name: ClassVar[str] = "user"
    neighbours: ClassVar[dict[str, Neighbours]] = PERSON_ADJACENCIES

    def __post_init__(self) -> None:
        for name, of in (("at_most", "kept"), ("per_step", "shown in a step")):
            if (value := getattr(self, name)) is not None:
                positive_integer(**{name: value}, remedy=f"give how many records of each user are {of}")
        true_or_false(clients=self.clients, grouped=self.grouped)
        for wrong, problem in (
            (self.clients and self.per_step is not None, "per_step is for users who are sampled, not for clients"),
            (self.grouped and not self.clients, "grouped is for virtual clients"),
            (self.users is not None and not self.grouped, "users is for groups; otherwise the population counts users"),
        ):
            if wrong:
                raise SfumatoError(problem, "leave it out")
        if self.grouped:  # the population does not count users
            positive_integer(users=self.users, remedy="give the declared number of users")

    @property
    def drawn(self) -> Drawn:
        """The units of a step's sum: users, or their virtual clients."""
        return "clients" if self.clients else "users"

    @property
    def sensitivity(self) -> float:
        """The largest L2 distance, in units of C, by which one user moves a step's sum."""
        return 2.0 if self.clients else 1.0

    @property
    def drawn_one(self) -> str:
        """The name of what is sampled, as statements write it."""
        return "group" if self.grouped else "person"

    def check(self, population: int) -> None:
        """Refuses more groups than users, and more records shown in a step than are kept."""
        if self.per_step is not None and self.at_most is not None:
            within(None, self.at_most, per_step=self.per_step, remedy="give at most the records kept of each user")
        within(population, None, optional=True, users=self.users, remedy="give at least as many users as groups")

    def count(self, population: int) -> int:
        """The number of units."""
        return population if self.users is None else self.users


Unit = Example | User
UNITS: dict[str, type[Example] | type[User]] = {Example.name: Example, User.name: User}


ALL = 2**31
"""A number of records that no user exceeds."""


def shown_by_plan(per_step: int, at_most: int | None) -> int | None:
    """The `per_step` of a plan for a requested one: None, for all, if it is no less than the most records of a user.

    >>> shown_by_plan(1, None), shown_by_plan(10, 10), shown_by_plan(ALL, None)
    (1, None, None)
    """
    return None if per_step >= (ALL if at_most is None else at_most) else per_step


def users_for_gradients(gradients: int, *, records: int, users: int, most: int | None = None) -> int:
    """The number of users who hold about `gradients` of all kept records. All users only if that is every record.

    Args:
        gradients: B, the number of records wanted.
        records: the number of kept records of all users.
        users: N.
        most: the largest answer when `gradients` is not all records; by default N - 1.

    >>> users_for_gradients(60, records=200, users=50), users_for_gradients(200, records=200, users=50)
    (15, 50)
    >>> users_for_gradients(199, records=200, users=50), users_for_gradients(1, records=200, users=50)
    (49, 1)
    """
    if gradients >= records:
        return users
    return max(1, min(round(gradients * users / records), users - 1 if most is None else most))
