"""Where the bytes of records lie, when they are read one by one: in files, or within shards."""

from __future__ import annotations

import hashlib
import math
import os
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import numpy as np

from sfumato.data.images import decoding

_ALL = (1 << 64) - 1


class Stored(Protocol):
    """N records, each of which is read when it is asked for, in any order and by several threads at once."""

    @property
    def room(self) -> float:
        """Bytes of memory that all images may take together at most; more of them stay where they are stored."""
        ...

    def __len__(self) -> int: ...

    def name(self, place: int) -> str:
        """What to call the record in this place, in a refusal: a file's path, or a shard's and where in it."""
        ...

    def read(self, place: int) -> bytes:
        """The bytes of the record in this place: an image file's. `SfumatoError` that names it where there are none."""
        ...


class Column:
    """N texts in one buffer: 8 bytes and their own for each, where a list takes a hundred more.

    >>> column = Column()
    >>> column.append("cat"), column.append("dog"), len(column), column[1]
    (None, None, 2, 'dog')
    """

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._ends = array("q", [0])

    def append(self, text: str) -> None:
        """One more text, behind the others."""
        self._bytes += text.encode("utf-8", "surrogateescape")
        self._ends.append(len(self._bytes))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, place: int) -> str:
        return self._bytes[self._ends[place] : self._ends[place + 1]].decode("utf-8", "surrogateescape")


class Files:
    """Records that are a file each.

    Args:
        paths: of the files.
    """

    room = math.inf

    def __init__(self, paths: Column):
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def name(self, place: int) -> str:
        """The file's path."""
        return self.paths[place]

    def read(self, place: int) -> bytes:
        """The file's bytes."""
        return decoding.read_bytes(self.paths[place])


class Identities:
    """What tells N files from others, however their paths are spelt: links of both kinds lead to one file."""

    def __init__(self) -> None:
        self._numbers = array("Q")

    def add(self, path: Path, known: os.stat_result) -> None:
        """One more file.

        Args:
            known: what the system says of it, links followed.
        """
        if known.st_ino:
            self._numbers.extend((known.st_dev, known.st_ino & _ALL))
        else:  # some file systems number nothing
            code = hashlib.blake2b(os.fsencode(path), digest_size=16).digest()
            self._numbers.extend((int.from_bytes(code[:8], "big"), int.from_bytes(code[8:], "big")))

    def repeated(self) -> Iterator[tuple[int, int]]:
        """The places of files that were added twice: each later one, by its place, with the first."""
        numbers = np.frombuffer(self._numbers, np.uint64).reshape(-1, 2)
        order = np.lexsort((numbers[:, 1], numbers[:, 0]))  # stable: equal ones stand in their order
        same = (numbers[order[1:]] == numbers[order[:-1]]).all(axis=1)
        for later in np.sort(order[1:][same]).tolist():
            yield int(np.flatnonzero((numbers == numbers[later]).all(axis=1))[0]), later
