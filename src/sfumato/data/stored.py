"""Storage of records that are read one by one: files or shards."""

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
    """N records that are read on access, in any order and by several threads at once."""

    @property
    def room(self) -> float:
        """Bytes of memory that all images may use together. Larger sets stay where they are stored."""
        ...

    def __len__(self) -> int: ...

    def name(self, place: int) -> str:
        """Name of the record at this place in errors: the path of its file, or of its shard and the place in it."""
        ...

    def read(self, place: int) -> bytes:
        """The bytes of the record at this place, an image file. `SfumatoError` with its name if there are none."""
        ...


class TextBuffer:
    """N texts in one buffer. Each needs 8 bytes and its own length; a list needs a hundred more.

    >>> column = TextBuffer()
    >>> column.append("cat"), column.append("dog"), len(column), column[1]
    (None, None, 2, 'dog')
    """

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._ends = array("q", [0])

    def append(self, text: str) -> None:
        """Appends a text."""
        self._bytes += text.encode("utf-8", "surrogateescape")
        self._ends.append(len(self._bytes))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, place: int) -> str:
        return self._bytes[self._ends[place] : self._ends[place + 1]].decode("utf-8", "surrogateescape")


class Files:
    """Records with one file each.

    Args:
        paths: paths of the files.
    """

    room = math.inf

    def __init__(self, paths: TextBuffer):
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
    """Identities of N files. Paths that lead to one file, by links of either kind, have the same identity."""

    def __init__(self) -> None:
        self._numbers = array("Q")

    def add(self, path: Path, known: os.stat_result) -> None:
        """Adds a file.

        Args:
            known: its `os.stat`, with links followed.
        """
        if known.st_ino:
            self._numbers.extend((known.st_dev, known.st_ino & _ALL))
        else:  # some file systems have no inode numbers
            code = hashlib.blake2b(os.fsencode(path), digest_size=16).digest()
            self._numbers.extend((int.from_bytes(code[:8], "big"), int.from_bytes(code[8:], "big")))

    def repeated(self) -> Iterator[tuple[int, int]]:
        """Positions of files that were added twice: pairs of the first and each later one."""
        numbers = np.frombuffer(self._numbers, np.uint64).reshape(-1, 2)
        order = np.lexsort((numbers[:, 1], numbers[:, 0]))  # stable: equal files keep their order
        same = (numbers[order[1:]] == numbers[order[:-1]]).all(axis=1)
        for later in np.sort(order[1:][same]).tolist():
            yield int(np.flatnonzero((numbers == numbers[later]).all(axis=1))[0]), later
