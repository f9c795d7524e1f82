"""The unit of privacy: the records that one guarantee covers, and the data sets that are neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from sfumato._checks import SfumatoError, one_of, positive_integer

Adjacency = Literal["add-or-remove", "zero-out"]
Drawn = Literal["examples", "users", "clients"]
DRAWN = ("examples", "users", "clients")


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
    max_vectors: ClassVar[int] = 1
    shift_per_vector: ClassVar[float] = 1.0
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
        drawn: what is sampled, and what each clipped vector belongs to.
            "examples": records are sampled, and each record's gradient is clipped to C. Needs `at_most`.
            "users": users are sampled, and each user's update from all kept records is clipped to C as a whole.
            "clients": users are sampled, and each user of a step is assigned independently to one of the step's
            virtual clients. The users of a client share one update, which is clipped to C.
        users: the declared number of users. None if users are sampled: then it is the plan's population.
        grouped: with "clients": the groups of users are fixed and public, and each group is sampled as a whole. Then
            the plan's population is the number of groups, and `users` must be given.

    **Guarantee.** The L2 distance, in units of C, by which one user moves a step's sum, whatever the others do, is at
    most `max_vectors` times `shift_per_vector`:

    - "users": 1, the user's own vector.
    - "clients": 2. One user's absence, or zero contribution, replaces one client's clipped vector by another. No other
      client changes, because users are assigned independently (or, under zero-out adjacency, by who is sampled, which
      does not depend on anybody's contribution).
    - "examples": the number of the user's records that are sampled, at most G. Which records of a user are kept must
      depend on that user's records alone; then another user's absence does not change it. The absence of one *record*
      may let another one in, so a guarantee for users implies none for records at the same noise.

    >>> User(drawn="examples", at_most=10, users=3400).max_vectors, User(drawn="clients").shift_per_vector
    (10, 2.0)
    """

    drawn: Drawn
    at_most: int | None = None
    users: int | None = None
    grouped: bool = False
    name: ClassVar[str] = "user"
    neighbours: ClassVar[dict[str, Neighbours]] = PERSON_ADJACENCIES

    def __post_init__(self) -> None:
        one_of("drawn", self.drawn, DRAWN)
        if self.at_most is not None:
            positive_integer("at_most", self.at_most, remedy="give how many records of each user are kept")
        elif self.drawn == "examples":
            raise SfumatoError(
                "at_most must be given if examples are sampled, got None: all records of a user count",
                "give the number of records to keep of each user, such as 10",
            )
        if not isinstance(self.grouped, bool):
            raise SfumatoError(f"grouped must be true or false, got {self.grouped!r}", "give True or False")
        if self.grouped and self.drawn != "clients":
            raise SfumatoError(
                f"grouped is for virtual clients, but drawn is {self.drawn}", 'leave it out, or use drawn="clients"'
            )
        if self.grouped or self.drawn == "examples":  # the population does not count users
            positive_integer("users", self.users, remedy="give the declared number of users")
        elif self.users is not None:
            raise SfumatoError(
                f"users must be left out if users are sampled, got {self.users!r}: the population is their number",
                "leave it out",
            )

    @property
    def max_vectors(self) -> int:
        """The largest number of clipped vectors of one unit in a step's sum."""
        return self.at_most if self.drawn == "examples" and self.at_most else 1

    @property
    def shift_per_vector(self) -> float:
        """By how much, in units of C, one unit moves the sum through each vector that it contributes to."""
        return 2.0 if self.drawn == "clients" else 1.0

    @property
    def drawn_one(self) -> str:
        """The name of what is sampled, as statements write it."""
        return "example" if self.drawn == "examples" else "group" if self.grouped else "person"

    def check(self, population: int) -> None:
        """Refuse a population that these users cannot make up."""
        if self.users is None:
            return
        if self.grouped:
            if self.users < population:
                raise SfumatoError(
                    f"users must be at least as many as the groups, got {self.users} users in {population} groups",
                    "give the number of users, and the number of groups as the population",
                )
            return
        if self.users > population:
            raise SfumatoError(
                f"users must not outnumber their examples, got {self.users} users of {population} examples",
                "give the number of users who have an example",
            )
        if self.max_vectors * self.users < population:
            raise SfumatoError(
                f"examples must be at most {self.max_vectors} for each of {self.users} users, got {population}",
                "give the number of examples that are kept",
            )

    def count(self, population: int) -> int:
        """The number of units."""
        return population if self.users is None else self.users


Unit = Example | User
UNITS: dict[str, type[Example] | type[User]] = {Example.name: Example, User.name: User}


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
