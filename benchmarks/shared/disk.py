"""A disk that loses its power: what a program wrote is recorded, and what may be left of it is written down again.

The model is that of ALICE (Pillai et al., OSDI 2014) and of SQLite's crash tests. A file's content is safe once it was
synced, a name once its directory was. Of what was not, anything may be there: nothing, all, a part that ends anywhere,
zeros in place of what was written, a later write without an earlier one; and of the changes to a directory (a rename is
one change) all, none, the first ones, or any without one of them.
"""

from __future__ import annotations

import functools
import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

CALLS = ("open", "write", "fsync", "replace", "rename", "unlink", "link", "mkdir", "rmdir", "ftruncate", "close")
"""The calls of the module os before and after each of which the disk is looked at."""


@dataclass(frozen=True)
class Content:
    """A file has this content now."""

    file: int
    bytes: bytes


@dataclass(frozen=True)
class Names:
    """At one moment names in directories were given to files, or taken away (None)."""

    changes: tuple[tuple[int, str, int | None], ...]

    def within(self, directory: int) -> bool:
        """Whether it changes that directory."""
        return any(where == directory for where, _, _ in self.changes)


@dataclass(frozen=True)
class Sync:
    """A file or a directory was synced."""

    number: int


@dataclass
class Trace:
    """What a program did to a directory and all in it, in order.

    Attributes:
        events: what it did.
        marks: by name, after how many events something had happened.
        directories: the numbers of all directories; 0 is the first one.
        private: which files others may not read.
    """

    root: Path
    events: list[Content | Names | Sync] = field(default_factory=list)
    marks: dict[str, int] = field(default_factory=dict)
    directories: set[int] = field(default_factory=lambda: {0})
    private: set[int] = field(default_factory=set)
    _numbers: dict[int, int] = field(default_factory=dict)
    _names: dict[tuple[int, str], int] = field(default_factory=dict)
    _contents: dict[int, bytes] = field(default_factory=dict)
    _count: int = 1

    def look(self) -> None:
        """Note what has changed."""
        names, contents = self._found()
        changed = [
            (*place, names.get(place)) for place in {*names, *self._names} if names.get(place) != self._names.get(place)
        ]
        self.events += [
            Content(file, content) for file, content in contents.items() if self._contents.get(file) != content
        ]
        if changed:
            self.events.append(Names(tuple(sorted(changed, key=str))))
        self._names, self._contents = names, contents

    def _found(self) -> tuple[dict[tuple[int, str], int], dict[int, bytes]]:
        """All names and contents; a file that is gone and whose inode another one has by now is another number."""
        names: dict[tuple[int, str], int] = {}
        contents: dict[int, bytes] = {}
        numbers = {os.stat(self.root).st_ino: 0}
        waiting = [(0, str(self.root))]
        while waiting:
            directory, path = waiting.pop()
            for entry in os.scandir(path):
                inode = entry.inode()
                if inode not in numbers:
                    known = self._numbers.get(inode)
                    numbers[inode] = self._count if known is None else known
                    self._count += known is None
                number = names[directory, entry.name] = numbers[inode]
                if entry.is_dir(follow_symlinks=False):
                    self.directories.add(number)
                    waiting.append((number, entry.path))
                else:
                    contents[number] = Path(entry.path).read_bytes()
                    if not entry.stat().st_mode & 0o077:
                        self.private.add(number)
        self._numbers = numbers
        return names, contents

    def synced(self, descriptor: int) -> None:
        """Note that an open file was synced."""
        number = self._numbers.get(os.fstat(descriptor).st_ino)
        if number is not None:
            self.events.append(Sync(number))

    def mark(self, name: str) -> None:
        """Note that something has happened, such as the return of a call."""
        self.look()
        self.marks[name] = len(self.events)


@contextmanager
def recorded(root: Path) -> Iterator[Trace]:
    """Record what this process does to a directory."""
    trace, busy = Trace(root), []

    def wrapped(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def looking(*given: Any, **options: Any) -> Any:
            if busy:
                return call(*given, **options)
            busy.append(name)
            try:
                trace.look()
                result = call(*given, **options)
                trace.look()
                if name == "fsync":
                    trace.synced(given[0])
            finally:
                busy.clear()
            return result

        return looking

    trace.look()
    with mock.patch.multiple(os, **{name: wrapped(name, getattr(os, name)) for name in CALLS}):
        yield trace
    trace.look()


@dataclass(frozen=True)
class State:
    """What may be on the disk: directories by their paths, and files with their contents."""

    directories: frozenset[str]
    files: frozenset[tuple[str, bytes, bool]]

    def put(self, root: Path) -> None:
        """Write it into an empty directory."""
        for path in sorted(self.directories):
            (root / path).mkdir(parents=True, exist_ok=True)
        for path, content, private in self.files:
            (root / path).write_bytes(content)
            (root / path).chmod(0o600 if private else 0o644)

    def get(self, path: str) -> bytes | None:
        """The content of a file."""
        return next((content for name, content, _ in self.files if name == path), None)


def states(trace: Trace, cut: int, *, mixtures: int = 4, seed: int = 0) -> Iterator[State]:
    """What may be on the disk where the power goes after so many events.

    Args:
        mixtures: so many states in which each file and each directory has a fate of its own, drawn at random.
    """
    contents, names = _pending(trace, cut)
    files = {number: list(_contents(versions)) for number, versions in contents.items()}
    folders = {number: list(_orders(changes)) for number, changes in names.items()}
    fates = max(map(len, files.values()), default=1), max(map(len, folders.values()), default=1)
    dice = random.Random(f"{seed} {cut}")
    for which_names in range(fates[1]):
        for which in range(fates[0]):
            yield _state(
                trace,
                {number: of[min(which, len(of) - 1)] for number, of in files.items()},
                {number: of[min(which_names, len(of) - 1)] for number, of in folders.items()},
            )
    for _ in range(mixtures):
        yield _state(
            trace,
            {number: dice.choice(of) for number, of in files.items()},
            {number: dice.choice(of) for number, of in folders.items()},
        )


def _pending(trace: Trace, cut: int) -> tuple[dict[int, list[bytes]], dict[int, list[Any]]]:
    """Of each file the content that is safe and those that came after; of each directory all changes, the safe ones as
    one: (changes that are safe, those that are not)."""
    contents: dict[int, list[bytes]] = {}
    names: dict[int, list[Any]] = {number: [[]] for number in trace.directories}
    for event in trace.events[:cut]:
        if isinstance(event, Content):
            contents.setdefault(event.file, [b""]).append(event.bytes)
        elif isinstance(event, Names):
            for number in trace.directories:
                if event.within(number):
                    names[number].append(event.changes)
        elif event.number in contents:
            contents[event.number] = contents[event.number][-1:]
        elif event.number in names:
            safe, *later = names[event.number]
            names[event.number] = [[*safe, *(change for changes in later for change in changes)]]
    return contents, names


def _contents(versions: Sequence[bytes]) -> Iterator[bytes]:
    """What may be left of a file: the newest version first."""
    yield versions[-1]
    yield from versions[-2::-1]
    for before, after in pairwise(versions):
        if after.startswith(before):
            added = len(after) - len(before)
            for there in sorted({1, added // 2, added - 1} - {0}):
                yield after[: len(before) + there]
            yield before + bytes(added)
            yield after[: len(before) + added // 2] + bytes(added - added // 2)
    safe, newest = versions[0], versions[-1]
    for one in versions[1:-1]:  # a later write is there, and this one is not
        if newest.startswith(one) and one.startswith(safe):
            yield safe + bytes(len(one) - len(safe)) + newest[len(one) :]


def _orders(changes: Sequence[Any]) -> Iterator[list[Any]]:
    """What may be left of the changes to a directory: all of them first."""
    safe, *later = changes
    for count in range(len(later), -1, -1):
        yield [*safe, *(change for one in later[:count] for change in one)]
    for absent in range(len(later) - 1):
        yield [*safe, *(change for place, one in enumerate(later) if place != absent for change in one)]


def _state(trace: Trace, contents: dict[int, bytes], changes: dict[int, list[Any]]) -> State:
    """The names that are left, followed from the first directory on; of a change to two each has its own."""
    names: dict[tuple[int, str], int | None] = {}
    for number, done in changes.items():
        names |= {(number, name): file for where, name, file in done if where == number}
    directories, files, waiting = set(), set(), [(0, "")]
    while waiting:
        above, path = waiting.pop()
        for (where, name), number in names.items():
            if where != above or number is None:
                continue
            own = os.path.join(path, name)
            if number in trace.directories:
                directories.add(own)
                waiting.append((number, own))
            else:
                files.add((own, contents.get(number, b""), number in trace.private))
    return State(frozenset(directories), frozenset(files))


def possible(trace: Trace, cuts: Sequence[int] | None = None, **how: Any) -> Iterator[tuple[int, State]]:
    """Each cut (all of them by default) with each state that it may leave, those that are alike only once a cut."""
    for cut in range(len(trace.events) + 1) if cuts is None else cuts:
        seen: set[State] = set()
        for state in states(trace, cut, **how):
            if state not in seen:
                seen.add(state)
                yield cut, state
