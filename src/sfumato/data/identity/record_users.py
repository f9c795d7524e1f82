"""Users of records, keyed codes of records, and the keyed split into train and test.

A record may have one user, several, or none. Their names share one text, and users and records form a graph.

A record has two codes, which mean nothing without the owner's key. The first is computed from the stored bytes, so a
copied file has the same code; the split uses it. The second is computed from the image's pixels, so the same image has
the same code in another format: as a file, as an array, as PNG or lossless TIFF. Neither depends on the size to which a
source resizes its images. The codes of a text are computed from the text and from its words.

If a split counts or shuffles, one record influences the place of others: without it, another record moves from the test
part to the training part. Neighbouring data sets then differ in more than one record, and the theorem for one record no
longer applies. Here a record's place is a function of the record and of the owner's key, nothing else.
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
"""Bytes of each of a record's two codes."""


def stored_code(owner_key: bytes, content: bytes) -> bytes:
    """The 16-byte code of stored bytes: those of a file or an array."""
    return hmac.digest(owner_key, b"record" + content, "sha256")[:LENGTH]


def pixel_code(owner_key: bytes, pixels: np.ndarray) -> bytes:
    """The 16-byte code of pixels uint8 (H, W, C) at original size; of one channel if all channels are equal."""
    grey = pixels.shape[2] == 1 or bool((pixels == pixels[:, :, :1]).all())
    shown = np.ascontiguousarray(pixels[:, :, :1] if grey else pixels)
    return hmac.digest(owner_key, f"pixels {shown.shape}".encode() + shown.tobytes(), "sha256")[:LENGTH]


def word_code(owner_key: bytes, text: str) -> bytes:
    """The 16-byte code of a text's words in lower case. Spacing and punctuation do not matter."""
    return hmac.digest(owner_key, b"words" + " ".join(WORD.findall(text.lower())).encode(), "sha256")[:LENGTH]


def user_code(owner_key: bytes, user: str) -> str:
    """A user's code, 32 hexadecimal digits. The same name has the same code in every source."""
    return hmac.digest(owner_key, b"user code" + user.encode(), "sha256")[:LENGTH].hex()


def codes_of(owner_key: bytes, stored: np.ndarray, pixels: np.ndarray) -> np.ndarray:
    """Both codes uint8 (N, 32) of images in arrays.

    Args:
        stored: (N, ...), as stored.
        pixels: uint8 (N, H, W, C), the same images in eight bits.
    """
    both = (stored_code(owner_key, one.tobytes()) + pixel_code(owner_key, two) for one, two in zip(stored, pixels))  # noqa: B905
    return as_array(both)


def as_array(codes: Iterable[bytes]) -> np.ndarray:
    """Codes of 32 bytes as uint8 (N, 32)."""
    return np.frombuffer(b"".join(codes), np.uint8).reshape(-1, 2 * LENGTH)


def find_known(codes: np.ndarray, among: np.ndarray) -> np.ndarray:
    """Which records, bool (N,), share either code with one of `among`; both uint8 (N, 32).

    >>> own, others = np.arange(96, dtype=np.uint8).reshape(3, 32), np.zeros((1, 32), np.uint8)
    >>> others[0, 16:] = own[1, 16:]
    >>> find_known(own, others).tolist()
    [False, True, False]
    """
    if not len(codes) or not len(among):
        return np.zeros(len(codes), bool)
    one, other = (np.ascontiguousarray(array).view(f"V{LENGTH}") for array in (codes, among))
    return np.asarray(np.isin(one, other).any(axis=1))


def keyed_position(owner_key: bytes, content: bytes) -> float:
    """A record's position in [0, 1): uniform over keys, equal for equal contents, independent for different ones.

    **Guarantee.** The position depends on this record's content and the key alone, so adding, removing or replacing one
    record moves no other (unit: one record; adjacency: any). Copies of one image always fall on the same side.

    Args:
        owner_key: the owner's secret (32 bytes).
        content: the record's bytes, for example those of its file.

    >>> keyed_position(bytes(32), b"an image") == keyed_position(bytes(32), b"an image")
    True
    """
    digest = hmac.digest(owner_key, b"split" + content, "sha256")
    return (int.from_bytes(digest[:8], "big") >> 11) / 2**53


def in_test(owner_key: bytes, content: bytes, test_fraction: float) -> bool:
    """Whether a record belongs to the test part, which holds the expected share `test_fraction` of all records.

    >>> sum(in_test(bytes(32), str(number).encode(), 0.2) for number in range(1000))
    172
    """
    return keyed_position(owner_key, content) < test_fraction


def record_in_test(owner_key: bytes, content: bytes, user: str | None, test_fraction: float) -> bool | None:
    """Whether a record belongs to the test part: by its users if known, else by its content.

    All records of one user fall on one side; otherwise the test part would contain people from training. A record
    with users on both sides is in neither part. A record of nobody is placed by its content.

    **Guarantee.** As in `keyed_position`. If users are known, adding or removing all records of one user moves no
    record of anybody else (unit: one record, or one user; adjacency: add-or-remove). The place of a record with several
    users depends on these users alone.

    Args:
        content: the stored bytes of the record.
        user: the record's user, or users as spelt by `canonical_users`; None if unknown.

    Returns:
        None if the record is left out.
    """
    users = () if user is None else parse_users(user)
    if not users:
        return in_test(owner_key, b"image" + content, test_fraction)
    sides = {in_test(owner_key, b"user" + name.encode(), test_fraction) for name in users}
    return sides.pop() if len(sides) == 1 else None


SEPARATOR = ";"
"""Separates the names of a record's users. Alone it means that the record has no user."""
_GREEK = "\u037e"
"""The Greek question mark, which looks like the separator and becomes it in composed form."""
NOBODY = f"write {SEPARATOR} alone if it belongs to nobody"


def parse_users(text: str) -> tuple[str, ...]:
    """The users in a text, each once, sorted; none if the text is the separator alone. A single name is unchanged.

    >>> parse_users("bob; ann;bob"), parse_users("ann"), parse_users(";")
    (('ann', 'bob'), ('ann',), ())
    """
    if SEPARATOR not in text:
        return (text,)
    return tuple(sorted({name for one in text.split(SEPARATOR) if (name := one.strip())}))


def canonical_users(text: str) -> str:
    """Canonical spelling of users. It contains the separator unless there is exactly one user, whose name is unchanged.

    >>> canonical_users("bob; ann"), canonical_users("ann;"), canonical_users(" ; "), canonical_users("ann")
    ('ann;bob', 'ann', ';', 'ann')
    """
    return SEPARATOR.join(parse_users(text)) or SEPARATOR


def users_to_nfc(text: str, names: Spellings) -> str:
    """Canonical spelling as by `canonical_users`, with each name in composed form, without spaces around it.

    >>> users_to_nfc("Zoe\\u0308; ann", Spellings()) == "Zo\\u00eb;ann"
    True
    """
    text = text.replace(_GREEK, SEPARATOR)
    if SEPARATOR not in text:
        return names.normalise("user", text.strip())
    several = [name for one in text.split(SEPARATOR) if (name := one.strip())]
    return canonical_users(SEPARATOR.join(names.normalise("user", name) for name in several))


def any_shared(users: np.ndarray | None) -> bool:
    """Whether any of these texts (N,), spelt by `canonical_users`, names several users or nobody."""
    return users is not None and bool((np.strings.find(users, SEPARATOR) >= 0).any())


@dataclass(frozen=True, kw_only=True, eq=False)
class UserGraph:
    """The graph of N records and their U users, with an edge for each user of each record.

    Args:
        count: N.
        records, users: int64 (E,), the two ends of each edge, by record and then by user.
        names: text (U,), user names, sorted.
    """

    count: int
    records: np.ndarray = field(repr=False)
    users: np.ndarray = field(repr=False)
    names: np.ndarray = field(repr=False)

    @property
    def users_per_record(self) -> np.ndarray:
        """Number of users of each record, int64 (N,)."""
        return np.bincount(self.records, minlength=self.count)

    @property
    def records_per_user(self) -> np.ndarray:
        """Number of records of each user, int64 (U,)."""
        return np.bincount(self.users, minlength=len(self.names))

    @property
    def shared(self) -> bool:
        """Whether any record has several users, or none."""
        return bool((self.users_per_record != 1).any())

    def among(self, which: np.ndarray) -> np.ndarray:
        """Number of each record's users in the mask `which` (U,): int64 (N,)."""
        return np.bincount(self.records[which[self.users]], minlength=self.count)


def user_graph(users: np.ndarray) -> UserGraph:
    """The graph of records with these users, text (N,).

    >>> graph = user_graph(np.array(["bob", "ann;bob", ";"]))
    >>> graph.records.tolist(), graph.names[graph.users].tolist(), graph.records_per_user.tolist()
    ([0, 1, 1], ['bob', 'ann', 'bob'], [1, 2])
    """
    numbers, texts = numbered(users)
    several = [parse_users(text) for text in texts]
    names = sorted({name for some in several for name in some})
    places = {name: place for place, name in enumerate(names)}
    sizes = np.array([len(some) for some in several], np.int64)
    flat = np.array([places[name] for some in several for name in some], np.int64)
    starts = np.cumsum(sizes) - sizes
    degrees = sizes[numbers]
    records = np.repeat(np.arange(len(users)), degrees)
    within = np.arange(len(records)) - np.repeat(np.cumsum(degrees) - degrees, degrees)
    return UserGraph(
        count=len(users),
        records=records,
        users=flat[starts[numbers][records] + within],
        names=np.array(names, users.dtype),
    )


def capped_mask(owners: UserGraph, codes: Sequence[bytes], owner_key: bytes, at_most: int) -> np.ndarray:
    """Selects records, bool (N,), such that each user has at most G of them.

    Greedy: records with fewer users come first, ties in the order of a keyed hash. A record is kept if all of its users
    have fewer than G kept records so far. Records of nobody are kept. The selection is maximal (contribution bounding
    for several owners: arXiv 2503.03622, algorithm 2).

    **Guarantee.** No user has more than G kept records. The selection is a function of the owner's key and of the graph
    alone, that is of the users of each record and of the order of records, never of their contents. So it does not
    change with the contents of one user's records, or if they contribute nothing (unit: one user; adjacency: zero-out,
    with the graph public). Nothing follows for add-or-remove: without a user's shared record, another record of the
    other user may be kept in its place, and so on from user to user.

    Args:
        codes: U codes, one for each user (`user_code`).
        owner_key: the owner's secret, 32 bytes.
        at_most: G.
    """
    degrees = owners.users_per_record
    ends = np.cumsum(degrees)
    own = [tuple(owners.users[end - degree : end].tolist()) for end, degree in zip(ends, degrees, strict=True)]
    seen: dict[tuple[int, ...], int] = {}

    def drawn(users: tuple[int, ...]) -> bytes:
        """Keyed hash of the record's users and of its position among records of the same users."""
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
"""`user_from` if each class folder has a folder for each user."""
BY_CLASS = "class"
"""`user_from` if each class is one user, named like the class."""


def check_by_class(declared: Declared, where: str, *, has_own_split: bool, own: str | None = None) -> None:
    """Refuses classes as users if records have several labels or other users, or if the split would separate classes.

    Args:
        where: name of the data set in errors.
        has_own_split: whether the data set has two parts.
        own: where the data themselves name users, if they do.
    """
    rule = f"`user_from={BY_CLASS}`"
    if own is not None:
        raise SfumatoError(f"{where} has the {own}, but {rule} is also given", "leave one of them out")
    if declared.labels.label_columns is not None:
        raise SfumatoError(
            f"{rule} makes each class one user, but `label_columns` give an image several classes",
            "leave one of them out",
        )
    if not has_own_split and not declared.purpose.open_set:
        raise SfumatoError(
            f"{rule} makes each class one user, and the split by user puts it whole in one part of {where}, so that a "
            "classifier would be tested on classes that it has not met",
            "leave it out, or make the train and test parts yourself; or train an embedding, which is to tell people "
            "apart that it has not met (sfumato embed, or open_source with open_set=True)",
        )


def refuse_several(names: Iterable[str], each: str = f"by `user_from={BY_CLASS}` each class") -> None:
    """Refuses a name that spells several users where `each` is one user."""
    for name in names:
        if SEPARATOR in name:
            raise SfumatoError(f"{each} is one user, but {name!r} names several, separated by {SEPARATOR}", "rename it")
