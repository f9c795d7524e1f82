"""Who is on each record, where several users may be on one, or nobody: their names in one text, and the graph that they
make with the records."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from sfumato._checks import SfumatoError
from sfumato.data.declared import Declared
from sfumato.data.records import numbered
from sfumato.data.spellings import Spellings

SEPARATOR = ";"
"""Between the names of a record's users; alone it says that nobody is on the record."""
_GREEK = "\u037e"
"""A question mark that looks like the separator and becomes it in composed form."""
NOBODY = f"write {SEPARATOR} alone where nobody is on it"


def named(text: str) -> tuple[str, ...]:
    """The users that a text names, each once and in order; none where it is the separator alone, and one name as it is.

    >>> named("bob; ann;bob"), named("ann"), named(";")
    (('ann', 'bob'), ('ann',), ())
    """
    if SEPARATOR not in text:
        return (text,)
    return tuple(sorted({name for one in text.split(SEPARATOR) if (name := one.strip())}))


def spelt(text: str) -> str:
    """The same users in one spelling, which holds the separator exactly where they are not one; one name as it is.

    >>> spelt("bob; ann"), spelt("ann;"), spelt(" ; "), spelt("ann")
    ('ann;bob', 'ann', ';', 'ann')
    """
    return SEPARATOR.join(named(text)) or SEPARATOR


def composed_users(text: str, names: Spellings) -> str:
    """The same as `spelt` has them, each name in its composed form.

    >>> composed_users("Zoe\\u0308; ann", Spellings()) == "Zo\\u00eb;ann"
    True
    """
    text = text.replace(_GREEK, SEPARATOR)
    if SEPARATOR not in text:
        return names.of("user", text)
    return spelt(SEPARATOR.join(names.of("user", one.strip()) for one in text.split(SEPARATOR)))


def are_shared(users: np.ndarray | None) -> bool:
    """Whether any of these texts (N,), as `spelt` has them, names several users or nobody."""
    return users is not None and bool((np.strings.find(users, SEPARATOR) >= 0).any())


@dataclass(frozen=True, kw_only=True, eq=False)
class Owners:
    """The graph of N records and the U users who are on them: one edge for each user on each record.

    Args:
        count: N.
        records, users: int64 (E,), the two ends of each edge, by record and then by user.
        names: text (U,), the users in the order of their names.
    """

    count: int
    records: np.ndarray = field(repr=False)
    users: np.ndarray = field(repr=False)
    names: np.ndarray = field(repr=False)

    @property
    def of_each_record(self) -> np.ndarray:
        """How many users are on each record, int64 (N,)."""
        return np.bincount(self.records, minlength=self.count)

    @property
    def of_each_user(self) -> np.ndarray:
        """On how many records each user is, int64 (U,)."""
        return np.bincount(self.users, minlength=len(self.names))

    @property
    def shared(self) -> bool:
        """Whether any record has several users, or none."""
        return bool((self.of_each_record != 1).any())

    def among(self, which: np.ndarray) -> np.ndarray:
        """How many of each record's users are among these, bool (U,): int64 (N,)."""
        return np.bincount(self.records[which[self.users]], minlength=self.count)


def owners_of(users: np.ndarray) -> Owners:
    """The graph of records with these users, text (N,).

    >>> graph = owners_of(np.array(["bob", "ann;bob", ";"]))
    >>> graph.records.tolist(), graph.names[graph.users].tolist(), graph.of_each_user.tolist()
    ([0, 1, 1], ['bob', 'ann', 'bob'], [1, 2])
    """
    numbers, texts = numbered(users)
    several = [named(text) for text in texts]
    names = sorted({name for some in several for name in some})
    places = {name: place for place, name in enumerate(names)}
    sizes = np.array([len(some) for some in several], np.int64)
    flat = np.array([places[name] for some in several for name in some], np.int64)
    starts = np.cumsum(sizes) - sizes
    degrees = sizes[numbers]
    records = np.repeat(np.arange(len(users)), degrees)
    within = np.arange(len(records)) - np.repeat(np.cumsum(degrees) - degrees, degrees)
    return Owners(
        count=len(users),
        records=records,
        users=flat[starts[numbers][records] + within],
        names=np.array(names, users.dtype),
    )


def bounded(owners: Owners, codes: Sequence[bytes], owner_key: bytes, at_most: int) -> np.ndarray:
    """Which records stay, bool (N,), where each user may be on at most G of those that do.

    One after the other a record stays if each of its users is on fewer than G of those that stay already: those with
    few users first, those with as many in the order of a keyed hash. Records of nobody stay. No record that is left
    out could be added (contribution bounding for several owners: arXiv 2503.03622, algorithm 2).

    **Guarantee.** No user is on more than G records that stay. Which ones stay is a function of the owner's key and of
    the graph alone, of who is on which record and of the records' order, and of nothing that is on them: so it is the
    same whatever the records of one user hold, or if they contribute nothing (unit: one user; adjacency: zero-out, with
    the graph public). Nothing follows for add-or-remove: without a user's records, where one of them is shared another
    one of the other user may stay in its place, and so on from user to user.

    Args:
        codes: of each user, U of them, what tells that user from others (`user_code`).
        owner_key: the owner's secret, 32 bytes.
        at_most: G.
    """
    degrees = owners.of_each_record
    ends = np.cumsum(degrees)
    own = [tuple(owners.users[end - degree : end].tolist()) for end, degree in zip(ends, degrees, strict=True)]
    seen: dict[tuple[int, ...], int] = {}

    def drawn(users: tuple[int, ...]) -> bytes:
        """Of the record's users, and of its place among the records of the same users."""
        place = seen[users] = seen.get(users, -1) + 1
        together = b"".join(sorted(codes[user] for user in users))
        return hmac.digest(owner_key, b"shared cap" + place.to_bytes(8, "big") + together, "sha256")

    hashes = [drawn(users) for users in own]
    left = [at_most] * len(owners.names)
    stay = np.zeros(owners.count, bool)
    for record in sorted(range(owners.count), key=lambda record: (degrees[record], hashes[record])):
        if all(left[user] for user in own[record]):
            stay[record] = True
            for user in own[record]:
                left[user] -= 1
    return stay


BY_FOLDER = "folder"
"""`user_from` where a folder in the class folder says whose images it holds."""
BY_CLASS = "class"
"""`user_from` where each class is one user: all of its records are theirs, and its name is the user's."""


def check_by_class(declared: Declared, where: str, *, has_own_split: bool, own: str | None = None) -> None:
    """Refuse classes as users where there is not one for each record, or where they could not be learnt.

    Args:
        where: what to call the data set in a refusal.
        has_own_split: whether it comes in two parts.
        own: in what the data say themselves whose records they are, if they do.
    """
    rule = f"`user_from={BY_CLASS}`"
    if own is not None:
        raise SfumatoError(f"{where} has the {own}, and {rule} is given", "leave one of them out")
    if declared.labels.label_columns is not None:
        raise SfumatoError(
            f"{rule} makes each class one user, and `label_columns` give an image several", "leave one of them out"
        )
    if not has_own_split and not declared.purpose.open_set:
        raise SfumatoError(
            f"{rule} makes each class one user, and the split by user puts it whole in one part of {where}, so that a "
            "classifier would be tested on classes that it has not met",
            "leave it out, or make the train and test parts yourself; or train an embedding, which is to tell people "
            "apart that it has not met (sfumato embed, or open_source with open_set=True)",
        )


def refuse_several(classes: Iterable[str]) -> None:
    """Refuse a class that would be several users, as each is one."""
    for name in classes:
        if SEPARATOR in name:
            raise SfumatoError(
                f"by `user_from={BY_CLASS}` each class is one user, and {name!r} names several, as {SEPARATOR} "
                "separates them",
                "rename the class",
            )
