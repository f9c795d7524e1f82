"""What one promise covers, and which data sets count as neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from sfumato._checks import SfumatoError, one_of, positive_integer

Adjacency = Literal["add-or-remove", "zero-out"]
Drawn = Literal["examples", "users", "clients"]
DRAWN = ("examples", "users", "clients")


class Neighbours(NamedTuple):
    """What an adjacency means, in plain words.

    Args:
        without: what the other one of two neighbouring data sets has in place of a unit: "as if it had ...".
        difference: what it is that makes the difference between the two.
        remark: what else a reader must know of it.
    """

    without: str
    difference: str
    remark: str = ""


ADJACENCIES: dict[str, Neighbours] = {
    "add-or-remove": Neighbours("never been used", "one example's presence"),
    "zero-out": Neighbours(
        "contributed nothing",
        "what one example contributes",
        "This is zero-out adjacency: of two neighbouring data sets one example contributes nothing in one, and "
        "contributes as it is in the other, while its place and the number of examples stay known. Under "
        "add-or-remove adjacency it may be missing altogether: figures of the one are no figures of the other.",
    ),
}
"""Of examples."""

OF_PERSONS: dict[str, Neighbours] = {
    "add-or-remove": Neighbours("never been used", "one person's presence"),
    "zero-out": Neighbours(
        "contributed nothing",
        "what one person contributes",
        "This is zero-out adjacency: of two neighbouring data sets one person contributes nothing in one, and "
        "contributes in the other, while that person's place and the numbers of persons and of examples stay "
        "known. Under add-or-remove adjacency the person may be missing altogether: figures of the one are no "
        "figures of the other.",
    ),
}

OF_SHARED = OF_PERSONS | {
    "zero-out": Neighbours(
        "contributed nothing",
        "what one person contributes",
        "This is zero-out adjacency: of two neighbouring data sets all images that one person is on contribute nothing "
        "in one, and contribute in the other, while it stays known which images there are and who is on which of them. "
        "Under add-or-remove adjacency the person, and these images, may be missing altogether: figures of the one are "
        "no figures of the other.",
    ),
}
"""Of persons several of whom may be on one image."""


@dataclass(frozen=True)
class Example:
    """One record: the promise covers each by itself, whoever it is about.

    A step's sum holds one vector of an example that takes part, of norm C at most: by so much the example moves it.
    """

    name: ClassVar[str] = "example"
    drawn: ClassVar[Drawn] = "examples"
    vectors: ClassVar[int] = 1
    moves: ClassVar[float] = 1.0
    drawn_one: ClassVar[str] = "example"
    neighbours: ClassVar[dict[str, Neighbours]] = ADJACENCIES
    shared: ClassVar[bool] = False

    def check(self, population: int) -> None:
        """Refuse a population that it cannot be counted in: there is none."""

    def count(self, population: int) -> int:
        """How many units there are."""
        return population


@dataclass(frozen=True, kw_only=True)
class User:
    """All records of one user: the promise covers each person, as far as each has one name in the data.

    Args:
        at_most: G, how many records of each user are kept; None for all of them.
        drawn: whose coins are tossed, and what a clipped vector belongs to.
            "examples": records are drawn, and each one's gradient is clipped to C. Needs `at_most`.
            "users": users are drawn, and each one's update, of all records that are kept, is clipped to C as a whole.
            "clients": users are drawn, and those of a step, each assigned independently to one of the step's virtual
            clients, share one update, which is clipped to C.
        users: how many there are, a declared constant. None where users are drawn: there it is the plan's population.
        grouped: of "clients": groups of users are fixed and public, and drawn as wholes, by one coin each. Then the
            plan's population is the number of groups, and `users` is given.
        shared: of "examples": a record may be of several users, or of nobody, and at most G are kept that a user is on.
            Who is on which record is taken as public, and adjacency is zero-out: all records that the user is on
            contribute nothing. Of records of nobody nothing is promised.

    **Guarantee.** By how much one user moves a step's sum, in L2 norm and in C, whatever the others do (`vectors` times
    `moves`): "users": 1, the user's own vector. "clients": 2, since one user's absence, or silence, turns one client's
    clipped vector into another one, and users are assigned independently, so that no other client's changes (or, under
    zero-out adjacency, by who is drawn, which nobody's silence changes).
    "examples": as many as are drawn of the user's records, at most G. Which records of a user are kept must be a
    function of that user's records alone. Then another user's absence changes nothing of it; but one *record*'s absence
    may let another one in, so no promise for records follows from one for users at the same noise. Where records are
    shared, which of them are kept must be a function of who is on which of them alone: then it is the same whatever one
    user's records hold, or if they contribute nothing, and of these at most G are drawn, each by a coin of its own.
    Where a user may be missing altogether that rule does not do: without the records that one user is on, others of
    their fellows' may take these places. One that leaves all shared records out would (`shared=False`).

    >>> User(drawn="examples", at_most=10, users=3400).vectors, User(drawn="clients").moves
    (10, 2.0)
    """

    drawn: Drawn
    at_most: int | None = None
    users: int | None = None
    grouped: bool = False
    shared: bool = False
    name: ClassVar[str] = "user"

    def __post_init__(self) -> None:
        one_of("drawn", self.drawn, DRAWN)
        if self.at_most is not None:
            positive_integer("at_most", self.at_most, remedy="give how many records of each user are kept")
        elif self.drawn == "examples":
            raise SfumatoError(
                "at_most must be given where examples are drawn, got None: all records of a user count",
                "give how many records of each user are kept, such as 10",
            )
        if not isinstance(self.grouped, bool):
            raise SfumatoError(f"grouped must be true or false, got {self.grouped!r}", "give True or False")
        if not isinstance(self.shared, bool):
            raise SfumatoError(f"shared must be true or false, got {self.shared!r}", "give True or False")
        if self.shared and self.drawn != "examples":
            raise SfumatoError(
                f"a record of several users belongs to none of them as a whole, and drawn is {self.drawn}",
                "draw examples, or name one user for each record",
            )
        if self.grouped and self.drawn != "clients":
            raise SfumatoError(
                f"grouped is for virtual clients, and drawn is {self.drawn}", 'leave it out, or take drawn="clients"'
            )
        if self.grouped or self.drawn == "examples":  # counted apart
            positive_integer("users", self.users, remedy="give the declared number of users")
        elif self.users is not None:
            raise SfumatoError(
                f"users must be left out where users are drawn, got {self.users!r}: they are the population",
                "leave it out",
            )

    @property
    def neighbours(self) -> dict[str, Neighbours]:
        """What each adjacency means for them."""
        return OF_SHARED if self.shared else OF_PERSONS

    @property
    def vectors(self) -> int:
        """How many clipped vectors of one unit a step's sum may hold."""
        return self.at_most if self.drawn == "examples" and self.at_most else 1

    @property
    def moves(self) -> float:
        """By how much, in C, one unit moves the sum through each vector that it has a part in."""
        return 2.0 if self.drawn == "clients" else 1.0

    @property
    def drawn_one(self) -> str:
        """What a coin is tossed for, in a statement's words."""
        return "example" if self.drawn == "examples" else "group" if self.grouped else "person"

    def check(self, population: int) -> None:
        """Refuse a population that these users cannot make up; shared records may be fewer than users, or nobody's."""
        if self.users is None or self.shared:
            return
        if self.grouped:
            if self.users < population:
                raise SfumatoError(
                    f"users must be at least as many as the groups, got {self.users} in {population} groups",
                    "give the number of users, and the number of groups as the population",
                )
            return
        if self.users > population:
            raise SfumatoError(
                f"users must not be more than their examples, got {self.users} users of {population} examples",
                "give the number of users who have an example",
            )
        if self.vectors * self.users < population:
            raise SfumatoError(
                f"examples must be at most {self.vectors} of each of {self.users} users, got {population}",
                "give the number of examples that are kept",
            )

    def count(self, population: int) -> int:
        """How many units there are."""
        return population if self.users is None else self.users


Unit = Example | User
UNITS: dict[str, type[Example] | type[User]] = {Example.name: Example, User.name: User}


def users_like(gradients: int, *, records: int, users: int, most: int | None = None) -> int:
    """How many of the users have about so many of all their records: all of them only where that is all.

    Args:
        gradients: B, so many of the records.
        records: of all users, as many as are kept.
        users: N.
        most: so many where that is not all; by default all but one.

    >>> users_like(60, records=200, users=50), users_like(200, records=200, users=50)
    (15, 50)
    >>> users_like(199, records=200, users=50), users_like(1, records=200, users=50)
    (49, 1)
    """
    if gradients >= records:
        return users
    return max(1, min(round(gradients * users / records), users - 1 if most is None else most))
