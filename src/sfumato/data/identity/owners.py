"""Who is on each record, where several users may be on one, or nobody: their names in one text, and the graph that they
make with the records. And what tells a record from others without saying anything of it to whoever lacks the owner's
key; and train or test, decided for each record alone by a keyed hash of it.

A record has two codes. The first is made of what is stored, so a copied file has it again; the split goes by it. The
second is made of the image's own pixels, so that the same images are known again in another format: as files, as
arrays, as PNG or lossless TIFF. Neither depends on the size that a source brings its images to. A text's are made of
the text, and of its words.

A split by counting or shuffling lets one record decide where the others go: take it away and another one crosses from
the test part to the training part. Then two neighbouring data sets differ in more than one record, and the theorem for
one record no longer applies. Here a record's place is a function of the record and of the owner's key, nothing else.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from sfumato._checks import SfumatoError
from sfumato.data.classes import Spellings
from sfumato.data.declared import Declared
from sfumato.data.records import numbered
from sfumato.data.tokens import WORD

LENGTH = 16
"""Bytes of each of the two."""


def stored_code(owner_key: bytes, content: bytes) -> bytes:
    """16 bytes of what is stored: a file's bytes, or an array's."""
    return hmac.digest(owner_key, b"record" + content, "sha256")[:LENGTH]


def pixel_code(owner_key: bytes, pixels: np.ndarray) -> bytes:
    """16 bytes of an image's pixels uint8 (H, W, C), at its own size; of one colour channel where all are equal."""
    grey = pixels.shape[2] == 1 or bool((pixels == pixels[:, :, :1]).all())
    shown = np.ascontiguousarray(pixels[:, :, :1] if grey else pixels)
    return hmac.digest(owner_key, f"pixels {shown.shape}".encode() + shown.tobytes(), "sha256")[:LENGTH]


def word_code(owner_key: bytes, text: str) -> bytes:
    """16 bytes of a text's words, in lower case: the same for another spacing and other punctuation."""
    return hmac.digest(owner_key, b"words" + " ".join(WORD.findall(text.lower())).encode(), "sha256")[:LENGTH]


def user_code(owner_key: bytes, user: str) -> str:
    """32 hexadecimal digits that tell a user from others: the same in every source that calls them alike."""
    return hmac.digest(owner_key, b"user code" + user.encode(), "sha256")[:LENGTH].hex()


def codes_of(owner_key: bytes, stored: np.ndarray, pixels: np.ndarray) -> np.ndarray:
    """Both codes uint8 (N, 32) of images in arrays.

    Args:
        stored: (N, ...), as they are stored.
        pixels: uint8 (N, H, W, C), the same in eight bits.
    """
    both = (stored_code(owner_key, one.tobytes()) + pixel_code(owner_key, two) for one, two in zip(stored, pixels))  # noqa: B905
    return as_array(both)


def as_array(codes: Iterable[bytes]) -> np.ndarray:
    """Codes of 32 bytes as uint8 (N, 32)."""
    return np.frombuffer(b"".join(codes), np.uint8).reshape(-1, 2 * LENGTH)


def known_again(codes: np.ndarray, among: np.ndarray) -> np.ndarray:
    """Which records, bool (N,), are among others by either of their codes; both uint8 (N, 32).

    >>> own, others = np.arange(96, dtype=np.uint8).reshape(3, 32), np.zeros((1, 32), np.uint8)
    >>> others[0, 16:] = own[1, 16:]
    >>> known_again(own, others).tolist()
    [False, True, False]
    """
    if not len(codes) or not len(among):
        return np.zeros(len(codes), bool)
    one, other = (np.ascontiguousarray(array).view(f"V{LENGTH}") for array in (codes, among))
    return np.asarray(np.isin(one, other).any(axis=1))


def position(owner_key: bytes, content: bytes) -> float:
    """A record's place in [0, 1): uniform over keys, the same for equal contents, unrelated for different ones.

    **Guarantee.** The place depends on this record's content and the key alone, so adding, removing or replacing one
    record moves no other (unit: one record; adjacency: any). Copies of one image always fall on the same side.

    Args:
        owner_key: the owner's secret (32 bytes).
        content: the record's own bytes, for example those of its file.

    >>> position(bytes(32), b"an image") == position(bytes(32), b"an image")
    True
    """
    digest = hmac.digest(owner_key, b"split" + content, "sha256")
    return (int.from_bytes(digest[:8], "big") >> 11) / 2**53


def in_test(owner_key: bytes, content: bytes, test_fraction: float) -> bool:
    """Whether a record belongs to the test part, which holds the expected share `test_fraction` of all records.

    >>> sum(in_test(bytes(32), str(number).encode(), 0.2) for number in range(1000))
    172
    """
    return position(owner_key, content) < test_fraction


def record_in_test(owner_key: bytes, content: bytes, user: str | None, test_fraction: float) -> bool | None:
    """Whether a record belongs to the test part: by its user where that is known, else by its own content.

    All records of one user fall on one side, else the test part would show people that the model has met. A record with
    users on both sides is in neither part, and one of nobody goes by its own content.

    **Guarantee.** As in `position`; where users are known, adding or removing all records of one user moves nobody
    else's (unit: one record, or one user; adjacency: add-or-remove). A record of several users goes by these alone.

    Args:
        content: what is stored of the record.
        user: whose record it is, or whose, as `owners.spelt` has them; None where nobody knows.

    Returns:
        None where it is left out.
    """
    users = () if user is None else named(user)
    if not users:
        return in_test(owner_key, b"image" + content, test_fraction)
    sides = {in_test(owner_key, b"user" + name.encode(), test_fraction) for name in users}
    return sides.pop() if len(sides) == 1 else None


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
