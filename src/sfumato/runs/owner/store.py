"""The owner's store: one file of lines about all runs, of which none may be lost or changed.

It lies beside the owner's key, outside the run directories: a run directory that is deleted gives nothing back. Each
line is sealed with the owner's key over the line before it. A sealed count beside the file says how many lines there
have been, so that a file that has lost its end, or was restored from an old copy, is missed.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from sfumato._checks import SfumatoError, parse_json
from sfumato._files import held_alone, make_directory, ordinary, sync_directory, write
from sfumato._systems import durable, open_bytes
from sfumato.randomness import keys
from sfumato.runs.owner.lines import Line, Release, Used, from_dict, now, to_dict

FILE, COUNT = "uses.jsonl", "lists.json"
SEAL = "seal"
LOST_KEY = "lost-key-"
"""How folders with lists of a lost key are called, before their date."""


class Count(NamedTuple):
    """How long the file was when it was last added to.

    Attributes:
        entries: all lines that were ever added.
        last: the seal of the last one.
        anew: the date on which the count was begun although lines were there; else "".
    """

    entries: int
    last: str
    anew: str = ""


class Store:
    """The lines, as read; to be added to while the file is held (`held`).

    Args:
        home: the owner's folder.
        count: what the count beside the file says, read before the file; None where there is none.
        content: the file's bytes.

    Attributes:
        lines: all of them, in their order.
        lost: how many lines there have been that the file has no more; at least 1 where the count was lost.
        anew: see `Count`.

    **Guarantee.** A line that was changed, does not follow the one before it, or was sealed by another key is refused.
    What is no line of JSON is passed over: if it was a whole line once, the next one does not follow, or the count
    misses it.
    """

    def __init__(self, home: Path, count: Count | None, content: bytes):
        self.home, self.lines, self._seals = home, list[Line](), list[str]()
        self._file: BinaryIO | None = None
        self._plans: dict[str, Release] = {}
        if content:
            self._key  # noqa: B018 - a key that is lost is no fault of the first line's
        for number, text in enumerate(content.split(b"\n"), start=1):
            try:
                entry = parse_json(text)
            except ValueError:  # cut short, so that its run had not begun; one that was whole is missed by the next one
                continue
            try:
                self._read(entry)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                raise SfumatoError(
                    f"line {number} of the list of runs {home / FILE} cannot be read ({error}), so what your runs cost "
                    "together is not known",
                    "restore the list, and the owner's key beside it, from a copy, or go back to the version of "
                    "sfumato that wrote the line; a list of another key is laid aside by sfumato doctor --new-key",
                ) from None
        self.counted = count is not None or not self.lines
        self.anew = (now()[:10] if self.lines else "") if count is None else count.anew
        self.lost = _lost(self._seals, count)

    @property
    def entries(self) -> int:
        """How many lines there have been."""
        return len(self.lines) + self.lost

    def append(self, line: Line) -> None:
        """Another line, safely on disk."""
        assert self._file is not None, "a file is added to while it is held"
        entry = to_dict(line)
        seal = self._sealed(entry)
        # The line break comes first as well: a line that was cut short must not swallow this one.
        self._file.write(f"\n{json.dumps({**entry, SEAL: seal})}\n".encode())
        self._file.flush()
        durable(self._file.fileno())  # its name, where the file may be new, with that of its count
        self.lines.append(line)
        self._seals.append(seal)
        self.write_count()

    def write_count(self) -> None:
        """Say beside the file how many lines there have been.

        **Guarantee.** The count never goes back, whatever was lost since.
        """
        said = Count(self.entries, self._seals[-1] if self._seals else "", self.anew)._asdict()
        write(self.home / COUNT, json.dumps({**said, SEAL: _code(self._key, said)}).encode(), private=True)

    def _read(self, entry: dict[str, Any]) -> None:
        seal = entry.pop(SEAL)
        if not hmac.compare_digest(seal, self._sealed(entry)):
            raise ValueError("it was changed, does not follow the line before it, or is of another owner's key")
        line = from_dict(entry)
        if isinstance(line, Used) and self._plans.setdefault(line.run, line.use) != line.use:
            raise ValueError("its run has another plan above")
        self.lines.append(line)
        self._seals.append(seal)

    def _sealed(self, entry: Mapping[str, Any]) -> str:
        """The code of this entry after those before it."""
        return _code(self._key, [self._seals[-1] if self._seals else "", entry])

    @cached_property
    def _key(self) -> bytes:
        return keys.owner_key(self.home)


def read() -> Store:
    """The store as it is; without lines where there is none."""
    home = keys.home()
    count, path = _counted(home), home / FILE  # in this order: a line that comes meanwhile is no loss
    return Store(home, count, ordinary(path).read_bytes() if path.exists() else b"")


@contextmanager
def held() -> Iterator[Store]:
    """The store, which no other process reads to add to until this is over; made where there is none.

    **Guarantee.** No two processes add a line without each other's.

    Errors: `SfumatoError` where it cannot be written, or where the system has no lock for it.
    """
    home = keys.home()
    path = home / FILE
    try:
        keys.owner_key(home)
        with open(open_bytes(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "r+b") as file:
            held_alone(file.fileno(), f"the list of runs {path}")
            count, content = _counted(home), file.read()
            store = Store(home, count, content)
            if count is None and not store.lines:
                store.write_count()  # before the first line, so that a kill after that leaves none without
            store._file = file
            yield store
    except OSError as error:
        raise SfumatoError(
            f"the list of runs {path} cannot be held and extended ({error.strerror or error})",
            "free some space, mend its permissions, or keep it on a file system with locks",
        ) from None


def new_key() -> Path:
    """Make another owner's key where the old one is lost, and lay the lists of the lost one aside; their new folder.

    Errors: `SfumatoError` where there are no such lists.
    """
    home = keys.home()
    lists = {path.relative_to(home).parts[0] for path in keys.lists_in(home)}
    if not lists or ((home / keys.OWNER_KEY).exists() and _is_ours(home)):
        raise SfumatoError(
            f"there are no lists of a lost owner's key in {home}", "leave --new-key out: a key is made at first use"
        )
    aside = home / f"{LOST_KEY}{now()[:19].replace('T', '-').replace(':', '')}"
    make_directory(aside, private=True)
    for name in sorted(lists):
        os.rename(home / name, aside / name)
    sync_directory(home)
    keys.owner_key(home)
    return aside


def _lost(seals: list[str], count: Count | None) -> int:
    """How many lines are no more: those after the last one that was counted are of a kill, and none."""
    if count is None:
        return min(1, len(seals))
    if not count.entries:
        return 0
    if count.last in seals:
        return count.entries - 1 - seals.index(count.last)
    return max(1, count.entries - len(seals))  # the last one that was counted is gone


def _counted(home: Path) -> Count | None:
    """What the count says; None where there is none.

    Errors: `SfumatoError` where it was changed, or is of another owner's key.
    """
    path = home / COUNT
    try:
        said = parse_json(ordinary(path).read_bytes())
        seal = said.pop(SEAL)
        if not hmac.compare_digest(seal, _code(keys.owner_key(home), said)):
            raise ValueError("it was changed, or made under another owner's key")
        return Count(**said)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, SfumatoError):
            raise
        raise SfumatoError(
            f"the count of your lists {path} cannot be read ({error})",
            "restore the lists, and the owner's key beside them, from a copy, or lay lists of another key aside "
            "(sfumato doctor --new-key)",
        ) from None


def _is_ours(home: Path) -> bool:
    try:
        return _counted(home) is not None
    except SfumatoError:
        return False


def _code(key: bytes, said: object) -> str:
    return hmac.new(key, b"lists " + json.dumps(said, sort_keys=True).encode(), hashlib.sha256).hexdigest()
