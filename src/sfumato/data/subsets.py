"""Users of a source; keyed digests that identify data sets to the owner, regardless of parts and order, or exactly (the
fingerprint); and subsets of a source's records: without a held-out validation part, used to choose settings; at most G
records of each user; and without some records, written to a new file."""

from __future__ import annotations

import csv
import hashlib
import hmac
import io
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sfumato._checks import SfumatoError, fraction, positive_integer
from sfumato._files import write
from sfumato.data.pieces import CachedRecords, Part
from sfumato.data.record_users import BY_CLASS, LENGTH, in_test, refuse_without_users, user_code
from sfumato.data.records import numbered
from sfumato.data.source import FACTS, LEFT_OUT, Source, own_codes


def by_user(part: Part) -> tuple[np.ndarray, np.ndarray]:
    """The user of each record.

    Returns:
        int64 (N,), positions in the second; text (U,), the sorted names of users, or their codes in a cache.

    Errors: `SfumatoError` for a part without users.
    """
    if part.users is None:
        refuse_without_users()
    users, names = numbered(part.users)
    return users, np.array(names, part.users.dtype)


def most_of_one_user(part: Part) -> int:
    """The largest number of records of one user in a part with users."""
    return int(np.bincount(by_user(part)[0]).max(initial=0))


def count_users(declared: int | None, train: Part, where: str) -> int | None:
    """The number of users, declared or else counted; None if users are unknown."""
    if train.users is not None:
        return len(by_user(train)[1]) if declared is None else declared
    if declared is not None:
        refuse_without_users(f"`users={declared}` is declared, but {where}")
    return None


def user_codes(part: Part, owner_key: bytes) -> np.ndarray | None:
    """The code, 32 hexadecimal digits, of each record's user, text (N,); None if users are unknown.

    A cache of features stores codes instead of names. They identify users within a cache and across sources, and mean
    nothing without the owner's key.
    """
    if part.users is None or isinstance(part, CachedRecords):
        return part.users
    numbers, texts = numbered(part.users)
    return np.array([user_code(owner_key, user) for user in texts], np.str_)[numbers]


def coded_users(part: Part, owner_key: bytes) -> tuple[np.ndarray, np.ndarray] | None:
    """The code of each user, ASCII uint8 (U, 32), and the number int64 (N,) of each record's user."""
    if part.users is None:
        return None
    users, names = by_user(part)
    cached = isinstance(part, CachedRecords)
    codes = names.tolist() if cached else [user_code(owner_key, user) for user in names.tolist()]
    return np.frombuffer("".join(codes).encode(), np.uint8).reshape(-1, 2 * LENGTH), users


def shared_users(source: Source, owner_key: bytes, other: Source | None = None) -> int | None:
    """Number of users with records both in the training and in the test part, or in any part of two sources.

    This is an exact figure about private data. Users with the same name in two sources count as one.

    Args:
        source: its training part includes what was held out from it.
        owner_key: the owner's secret, 32 bytes.
        other: a second source, instead of the test part.

    Returns:
        None if one of the parts has no users.
    """
    sides = [source.train, source.held_out], [source.test]
    if other is not None:
        sides = [source.train, source.held_out, source.test], [other.train, other.held_out, other.test]
    coded = [[coded_users(part, owner_key) for part in parts if part is not None] for parts in sides]
    if any(users is None for parts in coded for users in parts):
        return None
    first, second = ({code.tobytes() for users in parts if users is not None for code in users[0]} for parts in coded)
    return len(first & second)


def hold_out(source: Source, owner_key: bytes, share: float) -> tuple[Source, Part]:
    """The source with a smaller training part, and the validation part.

    **Guarantee.** A keyed hash of a record's stored bytes decides its side, so adding or removing one record moves no
    other, and the side does not depend on the size or on features computed from the image (unit: one record;
    adjacency: any). If the source has users, the user is hashed instead: all records of one user are on the same side,
    and adding or removing a user moves nobody else (unit: one record, or one user). The numbers of examples and of
    users for which a guarantee is computed are the declared ones times 1 - share, rounded: public constants.

    Args:
        source: an opened source.
        owner_key: the owner's secret, 32 bytes.
        share: expected share of the training part to hold out, such as 0.1.

    Errors: `SfumatoError` if each class of a classifier is one user, since it would never see the held-out classes.
    """
    fraction(validation=share, remedy="give the share of the training part to hold out, such as 0.1")
    if source.user_from == BY_CLASS and not source.open_set:
        raise SfumatoError(
            f"validation {share:g} is held out by user, and by `user_from={BY_CLASS}` whole classes would be",
            "leave one of them out",
        )
    train = source.train
    record_codes = own_codes(train, owner_key)[:, :LENGTH]

    def coins(codes: np.ndarray, prefix: bytes = b"") -> np.ndarray:
        drawn = (in_test(owner_key, b"validation" + prefix + code.tobytes(), share) for code in codes)
        return np.fromiter(drawn, bool, len(codes))

    users, rule = coded_users(train, owner_key), ""
    if users is None:
        held_out = coins(record_codes)
    else:
        (codes, numbers), rule = users, " by user"
        held_out = coins(codes, b"user")[numbers]
    stays = ~held_out
    if not stays.any() or not held_out.any():
        raise SfumatoError(
            f"validation {share:g} holds out {'none' if stays.any() else 'all'} of the training examples",
            "give a share that leaves some in both parts",
        )
    rest, validation = train.select(stays), train.select(held_out)
    smaller = replace(
        source,
        train=rest,
        held_out=validation,
        zoomed=None if source.zoomed is None else source.zoomed.select(stays),
        examples=max(1, round(source.examples * (1 - share))),
        users=None if source.users is None else max(1, round(source.users * (1 - share))),
        fingerprint=hmac.new(owner_key, f"{source.fingerprint} {share!r}{rule}".encode(), hashlib.sha256).hexdigest(),
    )
    return smaller, validation


def cap_per_user(source: Source, owner_key: bytes, at_most: int, *, examples: int | None = None) -> Source:
    """The source with at most G training records of each user.

    A user's records are ranked by a keyed hash of their stored bytes; ties by label, then by order. The first G are
    kept. So the selection does not depend on the size, on features computed from the images, or on the order of files.

    **Guarantee.** The kept records of a user are a function of that user's records and of the owner's key. So adding or
    removing a user, with all of their records, changes nothing for the others, and a user changes at most G of the kept
    records (unit: one user; adjacency: add-or-remove). There is no such guarantee for single records: if one is
    removed, another one of the same user may take its place.

    Args:
        source: an opened source with users.
        owner_key: the owner's secret, 32 bytes.
        at_most: G.
        examples: the declared number of kept records; None to count them, which makes it a fact that was read. It does
            not follow from the number before the cap, since it depends on the number of records of each user.
    """
    positive_integer(at_most=at_most, remedy="give the number of records to keep of each user, such as 10")
    kept = _ranks(source.train, owner_key) < at_most
    facts = tuple(fact for fact in (*FACTS, LEFT_OUT) if fact in {*source.read, "examples"})
    read = source.read if source.published else facts
    read = read if examples is None else tuple(fact for fact in source.read if fact != "examples")
    return replace(
        source,
        train=source.train.select(kept),
        zoomed=None if source.zoomed is None else source.zoomed.select(kept),
        examples=int(kept.sum()) if examples is None else positive_integer(examples=examples),
        read=read,
        fingerprint=hmac.digest(owner_key, f"{source.fingerprint} at most {at_most}".encode(), "sha256").hex(),
        at_most=at_most,
    )


def one_per_user(part: Part, owner_key: bytes) -> np.ndarray:
    """Chooses one record of each user, bool (N,): the first of those that `cap_per_user` would keep.

    **Guarantee.** The chosen record of a user is a function of that user's records and of the owner's key. So adding or
    removing a user, with all of their records, adds or removes one chosen record and changes no other.

    Errors: `SfumatoError` for a part without users.
    """
    return _ranks(part, owner_key) == 0


def _ranks(part: Part, owner_key: bytes) -> np.ndarray:
    users, _ = by_user(part)
    return ranks_within_users(users, own_codes(part, owner_key)[:, :LENGTH], part.labels, owner_key)


def ranks_within_users(users: np.ndarray, codes: np.ndarray, labels: np.ndarray, owner_key: bytes) -> np.ndarray:
    """The rank int64 (N,) of each record among those of its user, from 0.

    Args:
        users: int64 (N,).
        codes: uint8 (N, 16), codes of the stored bytes.
        labels: int64 (N,) or (N, L).
    """
    digests = (hmac.digest(owner_key, b"cap" + code.tobytes(), "sha256")[:8] for code in codes)
    drawn = np.fromiter((int.from_bytes(digest, "big") for digest in digests), np.uint64, len(codes))
    order = np.lexsort((*labels.reshape(len(labels), -1).T, drawn, users))
    starts = np.searchsorted(users[order], users[order])
    ranks = np.empty(len(users), np.int64)
    ranks[order] = np.arange(len(users)) - starts
    return ranks


MARK = "filtered_by_private_data"
"""Array or column that marks a filtered set. Models trained on such a set reveal private data."""


def write_without(
    parts: dict[str, Part], classes: tuple[str, ...], left_out: set[int], path: Path, *, marked: bool
) -> str:
    """Writes the kept records, as a table if they come from files, else as arrays.

    Args:
        parts: "train" and "test".
        classes: their class names.
        left_out: positions, counted over both parts.
        path: path without suffix.
        marked: whether the selection depended on private data.

    Returns:
        spelling of the written source: `csv:PATH` or `npz:PATH`.
    """
    kept: dict[str, np.ndarray] = {}
    first = 0
    for name, part in parts.items():
        kept[name] = np.array([first + place not in left_out for place in range(len(part))], dtype=bool)
        first += len(part)
    if all(part.files is not None for part in parts.values()):
        file = path.with_suffix(".csv")
        write(file, _table(parts, classes, kept, marked=marked).encode(), private=True)
        return f"csv:{file}"
    arrays: dict[str, np.ndarray] = {}
    columns: dict[str, np.ndarray] = {}
    for name, part in parts.items():
        arrays |= {f"x_{name}": part.take(slice(None))[kept[name]], f"y_{name}": part.labels[kept[name]]}
        for column, texts in (("users", part.users), ("groups", part.groups)):
            if texts is not None:
                rows = texts[kept[name]]
                columns[f"{column}_{name}"] = np.array(rows.tolist(), np.str_) if rows.dtype.kind == "T" else rows
    arrays |= columns | {"classes": np.array(classes)}
    if marked:
        arrays[MARK] = np.array(True)
    memory = io.BytesIO()
    np.savez(memory, **arrays)  # type: ignore[arg-type]
    file = path.with_suffix(".npz")
    write(file, memory.getvalue(), private=True)
    return f"npz:{file}"


def _table(parts: dict[str, Part], classes: tuple[str, ...], kept: dict[str, np.ndarray], *, marked: bool) -> str:
    """CSV text with columns path (absolute), label or several labels, split, and user and group if known."""
    text = io.StringIO(newline="")
    lines = csv.writer(text, lineterminator="\n")
    columns = {name: {"user": part.users, "group": part.groups} for name, part in parts.items()}
    present = [name for name in ("user", "group") if all(texts[name] is not None for texts in columns.values())]
    several = any(part.labels.ndim == 2 for part in parts.values())
    lines.writerow(["path", *(classes if several else ["label"]), "split", *present, *([MARK] if marked else [])])
    for name, part in parts.items():
        assert part.files is not None
        values = [texts for column in present if (texts := columns[name][column]) is not None]
        for place in np.flatnonzero(kept[name]):
            labels = part.labels[place].tolist() if several else [classes[int(part.labels[place])]]
            further = [texts[place] for texts in values]
            lines.writerow([Path(part.files[place]).resolve(), *labels, name, *further, *(["yes"] if marked else [])])
    return text.getvalue()


_BLOCK = 1024


def fingerprint(owner_key: bytes, train: Part, test: Part, classes: tuple[str, ...]) -> str:
    """HMAC-SHA256 over every pixel, label, user and group in order, the parts, class names and shapes.

    A plain hash of private data is a release: whoever holds a candidate data set can confirm it. Under the owner's key
    the value looks random to everybody else, so it may be part of a published record. Only the owner can tell that two
    runs used the same data.

    Args:
        owner_key: the owner's secret (32 bytes).
        train, test: the two parts; images (N, H, W, C), or texts (N, T).
        classes: the class names.

    Returns:
        64 hexadecimal digits.

    >>> from sfumato.data.records import Records
    >>> part = Records(images=np.zeros((1, 8, 8, 1), np.uint8), labels=np.array([0]))
    >>> len(fingerprint(bytes(32), part, part, ("a", "b")))
    64
    """

    def pixels(part: Part) -> Iterator[np.ndarray]:
        return (part.take(slice(start, start + _BLOCK)) for start in range(0, len(part), _BLOCK))

    return streamed(owner_key, train, test, classes, pixels)


def streamed(
    owner_key: bytes, train: Part, test: Part, classes: tuple[str, ...], pixels: Callable[[Any], Iterable[np.ndarray]]
) -> str:
    """`fingerprint` of parts whose pixels, uint8, come piece by piece.

    Args:
        pixels: yields all images or texts of a part in order. It is called for train, then for test.
    """
    code = hmac.new(owner_key, b"fingerprint", hashlib.sha256)
    # JSON in a fixed form that contains every length: different data sets give different byte streams.
    parts = {"train": train, "test": test}
    shapes = {name: list(part.shape) for name, part in parts.items()}
    users = {name: _Listed(part.users) for name, part in parts.items()}
    groups = {name: _Listed(part.groups) for name, part in parts.items() if part.groups is not None}
    matrices = {name: list(part.labels.shape) for name, part in parts.items() if part.labels.ndim > 1}
    optional = (("groups", groups), ("labels", matrices))
    further = {name: entries for name, entries in optional if entries}
    header = {"classes": list(classes), "shapes": shapes, "users": users} | further
    code.update(sum(map(len, _json(header))).to_bytes(8, "big"))
    for text in _json(header):
        code.update(text)
    for part in parts.values():
        code.update(np.ascontiguousarray(part.labels, dtype="<i8").data)
        for block in pixels(part):
            code.update(np.ascontiguousarray(block).data)
    return code.hexdigest()


class _Listed:
    """An array (N,) as a JSON list, generated piece by piece; null if there is no array."""

    def __init__(self, column: np.ndarray | None):
        self._column = column

    def __iter__(self) -> Iterator[bytes]:
        if self._column is None:
            yield b"null"
            return
        yield b"["
        for start in range(0, len(self._column), _BLOCK):
            block = self._column[start : start + _BLOCK].tolist()
            yield (b", " if start else b"") + json.dumps(block)[1:-1].encode()
        yield b"]"


def _json(value: Any) -> Iterator[bytes]:
    """`json.dumps(value, sort_keys=True)` in pieces."""
    if isinstance(value, _Listed):
        yield from value
    elif isinstance(value, dict):
        yield b"{"
        for place, (name, inner) in enumerate(sorted(value.items())):
            yield (b", " if place else b"") + json.dumps(name).encode() + b": "
            yield from _json(inner)
        yield b"}"
    else:
        yield json.dumps(value).encode()


def digests(owner_key: bytes, *parts: Part) -> tuple[str, str]:
    """`Source.stored_digest` and `Source.pixels`."""
    codes = [own_codes(part, owner_key) for part in parts]
    stored = _together(owner_key, b"material", np.concatenate([part_codes[:, :LENGTH] for part_codes in codes]))
    return stored, _together(owner_key, b"material", np.concatenate([part_codes[:, LENGTH:] for part_codes in codes]))


def assignment(owner_key: bytes, *parts: Part) -> str:
    """`Source.assignment`."""
    coded = [coded_users(part, owner_key) for part in parts]
    pairs, start = np.empty((sum(len(users[1]) for users in coded if users), 4 * LENGTH), np.uint8), 0
    for part, users in zip(parts, coded, strict=True):
        if users is None:
            return ""
        codes, owners = users
        rows, record_codes = pairs[start : start + len(owners)], own_codes(part, owner_key)
        for first in range(0, len(rows), _BLOCK):
            block = slice(first, first + _BLOCK)
            rows[block, : 2 * LENGTH] = codes[owners[block]]
            rows[block, 2 * LENGTH :] = record_codes[block]
        start += len(rows)
    return grouping(owner_key, pairs)


def grouping(owner_key: bytes, pairs: np.ndarray) -> str:
    """Which records belong to one user, by the first and by the second code of each: two HMACs, in hexadecimal.

    Users are known by their records alone, so the digits are the same whatever the users are called.

    Args:
        pairs: uint8 (N, 64), for each record 32 bytes that name its user, and its two codes.
    """
    digits = list[str]()
    for half in (slice(2 * LENGTH, 3 * LENGTH), slice(3 * LENGTH, None)):
        rising = np.concatenate([pairs[:, : 2 * LENGTH], pairs[:, half]], axis=1)
        rising = rising[np.argsort(rising.view(f"V{3 * LENGTH}")[:, 0])]
        names = rising[:, : 2 * LENGTH]
        ends = np.flatnonzero((names[1:] != names[:-1]).any(axis=1)) + 1
        groups = np.split(rising[:, 2 * LENGTH :], ends)
        digests = b"".join(hmac.digest(owner_key, b"group" + group.tobytes(), "sha256") for group in groups)
        digits.append(_together(owner_key, b"assignment", np.frombuffer(digests, np.uint8).reshape(-1, 32).copy()))
    return "".join(digits)


def _together(owner_key: bytes, prefix: bytes, members: np.ndarray) -> str:
    """HMAC of members, uint8 (N, bytes), in rising order. Sorts them in place."""
    rising = members.view(f"S{members.shape[1]}").reshape(-1)
    rising.sort()
    code = hmac.new(owner_key, prefix, hashlib.sha256)
    code.update(members.data)
    return code.hexdigest()
