"""Storage of records that are read one by one: files or shards.

Records of a source: images in memory or in files, or texts, with their labels.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import math
import os
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from pathlib import Path
from typing import Protocol, Self, TypeVar

import numpy as np

from sfumato._checks import SfumatoError
from sfumato.data import decoding
from sfumato.data.declared import OnProgress
from sfumato.data.levels import Levels

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

    def add(self, path: Path, file_stat: os.stat_result) -> None:
        """Adds a file.

        Args:
            file_stat: its `os.stat`, with links followed.
        """
        if file_stat.st_ino:
            self._numbers.extend((file_stat.st_dev, file_stat.st_ino & _ALL))
        else:  # some file systems have no inode numbers
            code = hashlib.blake2b(os.fsencode(path), digest_size=16).digest()
            self._numbers.extend((int.from_bytes(code[:8], "big"), int.from_bytes(code[8:], "big")))

    def refuse_repeated(self, name: Callable[[int], str]) -> None:
        """Refuses a file that was added twice.

        Args:
            name: what to call the file at a position in errors.
        """
        numbers = np.frombuffer(self._numbers, np.uint64).reshape(-1, 2)
        order = np.lexsort((numbers[:, 1], numbers[:, 0]))  # stable: equal files keep their order
        same = (numbers[order[1:]] == numbers[order[:-1]]).all(axis=1)
        for later in np.sort(order[1:][same]).tolist():
            first = int(np.flatnonzero((numbers == numbers[later]).all(axis=1))[0])
            raise SfumatoError(
                f"{name(first)} and {name(later)} are the same file",
                "keep one of them: the guarantee for one record covers one file name",
            )


Item = TypeVar("Item")
Result = TypeVar("Result")

_BLOCK = 4096
_TRIED = 3
"""Items per block that are timed to decide whether to use threads."""
_SHORT = 1e-3
"""Seconds per item below which threads are not used."""
_PIECE = 4
"""Items per task of a thread."""


@dataclass(frozen=True, kw_only=True, eq=False)
class BaseRecords:
    """Base class of records: each array has a row for each record.

    Args:
        labels: int64 array (N,), positions in the source's class list; or (N, L) of 0 and 1 for each of its L labels;
            or (N, T), positions of a text's next words, 0 for padding.
        users: array (N,) of text, the user or users of each record, if known.
        groups: array (N,) of text, the public group of each record's user, if known.
        subgroups: array (N,) of text, the group of each record for figures (`groups_from`), if declared. Private.
        codes: uint8 array (N, 32), the two codes of each record; None to compute them from the images.
        rows: int64 array (N,), positions in the original array; None for all of it, in order.
    """

    labels: np.ndarray = field(repr=False)
    users: np.ndarray | None = field(repr=False, default=None)
    groups: np.ndarray | None = field(repr=False, default=None)
    subgroups: np.ndarray | None = field(repr=False, default=None)
    codes: np.ndarray | None = field(repr=False, default=None)
    rows: np.ndarray | None = field(repr=False, default=None)

    @property
    def _stored(self) -> np.ndarray:
        raise NotImplementedError

    def __post_init__(self) -> None:
        if self.labels.dtype != np.int64 or self.labels.ndim not in (1, 2):
            raise TypeError(f"labels must be int64 (N,) or (N, L), got {self.labels.dtype} {self.labels.shape}")
        for name, rows in self._arrays().items():
            if len(rows) != len(self) or (name in ("users", "groups", "subgroups") and rows.ndim != 1):
                raise TypeError(f"{name} must have {len(self)} rows, got {rows.shape}")

    def __len__(self) -> int:
        return len(self.labels)

    def _arrays(self) -> dict[str, np.ndarray]:
        values = {column.name: getattr(self, column.name) for column in fields(self)}
        return {name: array for name, array in values.items() if isinstance(array, np.ndarray)}

    @property
    def shape(self) -> tuple[int, ...]:
        """N, H, W, C of images; N, T of texts."""
        return self._stored.shape

    @property
    def nbytes(self) -> int:
        """Bytes in memory, without the original texts."""
        return self._stored.nbytes

    def take(self, rows: np.ndarray | slice) -> np.ndarray:
        """Images uint8 (n, H, W, C), or numbers int32 (n, T), of the records at these positions."""
        return self._stored[rows]

    def select(self, which: np.ndarray) -> Self:
        """The records where the mask (N,) is true."""
        kept = {name: rows[which] for name, rows in self._arrays().items()}
        return replace(self, **{"rows": np.flatnonzero(which), **kept})


@dataclass(frozen=True, kw_only=True, eq=False)
class Records(BaseRecords):
    """One part of a source: N images of one size, and the class of each.

    Args:
        images: uint8 array (N, H, W, C), C = 1 (grey) or 3 (red, green, blue), 0 is black.
        files: array (N,) of paths, if each record comes from a file.

    >>> part = Records(images=np.zeros((2, 8, 8, 1), np.uint8), labels=np.array([0, 1]))
    >>> len(part), part.images.shape
    (2, (2, 8, 8, 1))
    """

    images: np.ndarray = field(repr=False)
    files: np.ndarray | None = field(repr=False, default=None)

    _stored = property(attrgetter("images"))

    def __post_init__(self) -> None:
        if self.images.dtype != np.uint8 or self.images.ndim != 4 or self.images.shape[3] not in (1, 3):
            raise TypeError(f"images must be uint8 (N, H, W, 1 or 3), got {self.images.dtype} {self.images.shape}")
        super().__post_init__()


@dataclass(frozen=True, kw_only=True, eq=False)
class TextRecords(BaseRecords):
    """One part of a source: N texts as numbers of words, and the class of each.

    Args:
        tokens: int32 (N, T), 0 after the last word.
        codes: uint8 (N, 32), the two codes of each record: of the stored text, and of its words.
        texts: array (N,) of the original texts, if the source has them. For the owner alone.

    >>> codes = np.zeros((2, 32), np.uint8)
    >>> part = TextRecords(tokens=np.zeros((2, 5), np.int32), labels=np.array([0, 1]), codes=codes)
    >>> len(part), part.shape, len(part.select(np.array([True, False])))
    (2, (2, 5), 1)
    """

    tokens: np.ndarray = field(repr=False)
    codes: np.ndarray = field(repr=False)
    texts: np.ndarray | None = field(repr=False, default=None)

    files = None
    _stored = property(attrgetter("tokens"))

    def __post_init__(self) -> None:
        if self.tokens.dtype != np.int32 or self.tokens.ndim != 2:
            raise TypeError(f"tokens must be int32 (N, T), got {self.tokens.dtype} {self.tokens.shape}")
        super().__post_init__()


@dataclass(frozen=True, kw_only=True, eq=False)
class FileRecords(BaseRecords):
    """One part of a source whose images stay where they are stored and are decoded on each access.

    For sets that do not fit in memory. The images are the same as in `Records`.

    Args:
        stored: storage of the images of all parts: files or shards.
        places: int64 array (N,), positions of this part's images in the storage.
        codes: uint8 array (N, 32), the two codes of each record.
        size, channels: of every image after preparation.
        levels: declared levels of 16-bit pixels.
    """

    stored: Stored = field(repr=False)
    places: np.ndarray = field(repr=False)
    codes: np.ndarray = field(repr=False)
    size: int
    channels: int
    levels: Levels | None = None

    @property
    def files(self) -> np.ndarray | None:
        """Array (N,) of the files' paths; None for images in shards."""
        return paths_of(self.stored, self.places)

    @property
    def shape(self) -> tuple[int, ...]:
        """N, H, W, C."""
        return (len(self), self.size, self.size, self.channels)

    @property
    def nbytes(self) -> int:
        """Bytes in memory: none."""
        return 0

    def take(self, rows: np.ndarray | slice) -> np.ndarray:
        """Images uint8 (n, H, W, C) of the records at these positions."""
        places = self.places[rows]
        pixels = np.empty((len(places), *self.shape[1:]), np.uint8)
        order = np.argsort(places, kind="stable")  # neighbours in a shard are read together
        for row, image in zip(order, map_in_threads(self._image, places[order]), strict=True):
            pixels[row] = image
        return pixels

    def _image(self, place: int) -> np.ndarray:
        content, name = self.stored.read(place), self.stored.name(place)
        return decoding.decode(content, name, size=self.size, channels=self.channels, levels=self.levels)


def numbered(texts: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Positions int64 (N,) of the texts (N,) among the sorted distinct texts, and these.

    Like `np.unique`, without a sorted copy of all texts.

    >>> numbered(np.array(["b", "a", "b"]))
    (array([1, 0, 1]), ['a', 'b'])
    """
    pieces = [slice(start, start + _BLOCK) for start in range(0, len(texts), _BLOCK)]
    distinct: set[str] = set()
    for piece in pieces:
        distinct.update(texts[piece].tolist())
    names = sorted(distinct)
    places = {name: place for place, name in enumerate(names)}
    numbers = (places[text] for piece in pieces for text in texts[piece].tolist())
    return np.fromiter(numbers, np.int64, len(texts)), names


def paths_of(stored: Stored, places: np.ndarray) -> np.ndarray | None:
    """Array (n,) of text, the paths of the files at these places; None for records in shards."""
    if not isinstance(stored, Files):
        return None
    return np.array([stored.paths[place] for place in places], dtype=np.str_)


def map_in_threads(
    work: Callable[[Item], Result], items: Sequence[Item] | np.ndarray, progress: OnProgress | None = None
) -> Iterator[Result]:
    """Maps `work` over items, in order, so that errors always name the first bad file.

    Short work is done without threads, which would mostly wait for the interpreter.
    """

    def work_on(block: Sequence[Item]) -> list[Result]:
        return [work(item) for item in block]

    with contextlib.ExitStack() as stack:
        pool, done = None, 0
        for start in range(0, len(items), _BLOCK):
            block = items[start : start + _BLOCK]
            block = block.tolist() if isinstance(block, np.ndarray) else block
            began = time.perf_counter()
            results = iter(work_on(block[:_TRIED]))
            if time.perf_counter() - began < _TRIED * _SHORT:
                results = itertools.chain(results, map(work, block[_TRIED:]))
            else:
                if pool is None:
                    pool = ThreadPoolExecutor()
                    stack.callback(pool.shutdown, cancel_futures=True)
                pieces = (block[first : first + _PIECE] for first in range(_TRIED, len(block), _PIECE))
                results = itertools.chain(results, itertools.chain.from_iterable(pool.map(work_on, pieces)))
            for result in results:
                done += 1
                if progress is not None:
                    progress(done, len(items))
                yield result
