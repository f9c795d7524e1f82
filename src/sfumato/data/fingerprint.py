"""Keyed digests that identify data sets to the owner: regardless of parts and order, or exactly (the fingerprint)."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from sfumato.data.pieces import Part
from sfumato.data.record_users import LENGTH
from sfumato.data.source import own_codes
from sfumato.data.subsets import coded_users

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
    known = (("groups", groups), ("labels", matrices))
    further = {name: some for name, some in known if some}
    header = {"classes": list(classes), "shapes": shapes, "users": users} | further
    code.update(sum(map(len, _json(header))).to_bytes(8, "big"))
    for text in _json(header):
        code.update(text)
    for part in parts.values():
        code.update(np.ascontiguousarray(part.labels, dtype="<i8").data)
        for some in pixels(part):
            code.update(np.ascontiguousarray(some).data)
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
            some = self._column[start : start + _BLOCK].tolist()
            yield (b", " if start else b"") + json.dumps(some)[1:-1].encode()
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
    stored = _together(owner_key, b"material", np.concatenate([some[:, :LENGTH] for some in codes]))
    return stored, _together(owner_key, b"material", np.concatenate([some[:, LENGTH:] for some in codes]))


def assignment(owner_key: bytes, *parts: Part) -> str:
    """`Source.assignment`."""
    known = [coded_users(part, owner_key) for part in parts]
    pairs, start = np.empty((sum(len(users[1]) for users in known if users), 4 * LENGTH), np.uint8), 0
    for part, users in zip(parts, known, strict=True):
        if users is None:
            return ""
        codes, owners = users
        some, own = pairs[start : start + len(owners)], own_codes(part, owner_key)
        for first in range(0, len(some), _BLOCK):
            block = slice(first, first + _BLOCK)
            some[block, : 2 * LENGTH] = codes[owners[block]]
            some[block, 2 * LENGTH :] = own[block]
        start += len(some)
    return grouping(owner_key, pairs)


def grouping(owner_key: bytes, pairs: np.ndarray) -> str:
    """Which records belong to one user, by the first and by the second code of each: two HMACs, in hexadecimal.

    Users are known by their records alone, so the digits are the same whatever the users are called.

    Args:
        pairs: uint8 (N, 64), for each record 32 bytes that name its user, and its two codes.
    """
    found = list[str]()
    for half in (slice(2 * LENGTH, 3 * LENGTH), slice(3 * LENGTH, None)):
        rising = np.concatenate([pairs[:, : 2 * LENGTH], pairs[:, half]], axis=1)
        rising = rising[np.argsort(rising.view(f"V{3 * LENGTH}")[:, 0])]
        names = rising[:, : 2 * LENGTH]
        ends = np.flatnonzero((names[1:] != names[:-1]).any(axis=1)) + 1
        groups = np.split(rising[:, 2 * LENGTH :], ends)
        digests = b"".join(hmac.digest(owner_key, b"group" + group.tobytes(), "sha256") for group in groups)
        found.append(_together(owner_key, b"assignment", np.frombuffer(digests, np.uint8).reshape(-1, 32).copy()))
    return "".join(found)


def _together(owner_key: bytes, what: bytes, members: np.ndarray) -> str:
    """HMAC of members, uint8 (N, bytes), in rising order. Sorts them in place."""
    rising = members.view(f"S{members.shape[1]}").reshape(-1)
    rising.sort()
    code = hmac.new(owner_key, what, hashlib.sha256)
    code.update(members.data)
    return code.hexdigest()
