"""What a source holds once it is read: images in memory or in their files, or texts, with their labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from pathlib import Path
from typing import Self, TypeVar

import numpy as np

from sfumato.data.declared import OnProgress
from sfumato.data.images import decoding
from sfumato.data.images.levels import Levels

Item = TypeVar("Item")
Result = TypeVar("Result")

_BLOCK = 4096


@dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    """What all records in arrays have in common: each array has a row for each record.

    Args:
        labels: int64 array (N,), positions in the source's class list; or (N, L) of 0 and 1, whether each of its L
            labels is true of the record.
        users: array (N,) of text that says whose record each one is, where the source knows.
        groups: array (N,) of text, the public group that each record's user belongs to, likewise.
        times: array (N,) of each record's own time stamp (`TimeStamp`), likewise.
        files: array (N,) of the paths of the files that the records come from, likewise.
        codes: uint8 array (N, 32), each record's own two (`codes`); None to make them of the images as they are.
        rows: int64 array (N,) of where the records stand in the array that they come from; None where they are all of
            it, in its order.
    """

    labels: np.ndarray = field(repr=False)
    users: np.ndarray | None = field(repr=False, default=None)
    groups: np.ndarray | None = field(repr=False, default=None)
    times: np.ndarray | None = field(repr=False, default=None)
    files: np.ndarray | None = field(repr=False, default=None)
    codes: np.ndarray | None = field(repr=False, default=None)
    rows: np.ndarray | None = field(repr=False, default=None)

    @property
    def _stored(self) -> np.ndarray:
        raise NotImplementedError

    def __post_init__(self) -> None:
        if self.labels.dtype != np.int64 or self.labels.ndim not in (1, 2):
            raise TypeError(f"labels must be int64 (N,) or (N, L), got {self.labels.dtype} {self.labels.shape}")
        for name, known in self._arrays().items():
            if len(known) != len(self) or (name in ("users", "groups", "times") and known.ndim != 1):
                raise TypeError(f"{name} must have {len(self)} rows, got {known.shape}")

    def __len__(self) -> int:
        return len(self.labels)

    def _arrays(self) -> dict[str, np.ndarray]:
        known = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: array for name, array in known.items() if isinstance(array, np.ndarray)}

    @property
    def shape(self) -> tuple[int, ...]:
        """N, H, W, C of images; N, T of texts."""
        return self._stored.shape

    @property
    def nbytes(self) -> int:
        """Bytes in memory, without the texts themselves."""
        return self._stored.nbytes

    def take(self, rows: np.ndarray | slice) -> np.ndarray:
        """Images uint8 (n, H, W, C), or numbers int32 (n, T), of the records at these positions."""
        return self._stored[rows]

    def chosen(self, which: np.ndarray) -> Self:
        """The records where the mask (N,) is true."""
        kept = {name: known[which] for name, known in self._arrays().items()}
        return replace(self, **{"rows": np.flatnonzero(which), **kept})


@dataclass(frozen=True, kw_only=True, eq=False)
class Records(Rows):
    """One part of a source: N images of one size, and the class of each.

    Args:
        images: uint8 array (N, H, W, C), C = 1 (grey) or 3 (red, green, blue), 0 is black.

    >>> part = Records(images=np.zeros((2, 8, 8, 1), np.uint8), labels=np.array([0, 1]))
    >>> len(part), part.images.shape
    (2, (2, 8, 8, 1))
    """

    images: np.ndarray = field(repr=False)

    _stored = property(attrgetter("images"))

    def __post_init__(self) -> None:
        if self.images.dtype != np.uint8 or self.images.ndim != 4 or self.images.shape[3] not in (1, 3):
            raise TypeError(f"images must be uint8 (N, H, W, 1 or 3), got {self.images.dtype} {self.images.shape}")
        super().__post_init__()


@dataclass(frozen=True, kw_only=True, eq=False)
class TextRecords(Rows):
    """One part of a source: N texts as numbers of words, and the class of each.

    Args:
        tokens: int32 (N, T), 0 after the last word.
        codes: uint8 (N, 32), each record's own two (`codes`): of the text as it is stored, and of its words.
        texts: array (N,) of the texts themselves, where the source has them; for their owner's eyes.

    >>> codes = np.zeros((2, 32), np.uint8)
    >>> part = TextRecords(tokens=np.zeros((2, 5), np.int32), labels=np.array([0, 1]), codes=codes)
    >>> len(part), part.shape, len(part.chosen(np.array([True, False])))
    (2, (2, 5), 1)
    """

    tokens: np.ndarray = field(repr=False)
    codes: np.ndarray = field(repr=False)
    texts: np.ndarray | None = field(repr=False, default=None)

    _stored = property(attrgetter("tokens"))

    def __post_init__(self) -> None:
        if self.tokens.dtype != np.int32 or self.tokens.ndim != 2:
            raise TypeError(f"tokens must be int32 (N, T), got {self.tokens.dtype} {self.tokens.shape}")
        super().__post_init__()


@dataclass(frozen=True, kw_only=True, eq=False)
class FileRecords(Rows):
    """One part of a source whose images stay in their files and are decoded whenever they are asked for.

    For sets that memory cannot hold; the images are those that `Records` would hold.

    Args:
        files: array (N,) of paths.
        codes: uint8 array (N, 32), each record's own two (`codes`).
        size, channels: what every image is brought to.
        levels: what was declared of pixels of 16 bits.
    """

    files: np.ndarray = field(repr=False)
    codes: np.ndarray = field(repr=False)
    size: int
    channels: int
    levels: Levels | None = None

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
        paths = [Path(path) for path in self.files[rows]]
        pixels = np.empty((len(paths), *self.shape[1:]), np.uint8)
        for index, image in enumerate(in_threads(self._image, paths)):
            pixels[index] = image
        return pixels

    def _image(self, path: Path) -> np.ndarray:
        content = decoding.read_bytes(path)
        return decoding.decode(content, path, size=self.size, channels=self.channels, levels=self.levels)


def in_threads(
    work: Callable[[Item], Result], items: Sequence[Item], progress: OnProgress | None = None
) -> Iterator[Result]:
    """The results in the order of the items, so that the first bad file by name is the one that is reported."""
    pool = ThreadPoolExecutor()
    try:
        done = 0
        for start in range(0, len(items), _BLOCK):
            for result in pool.map(work, items[start : start + _BLOCK]):
                yield result
                done += 1
                if progress is not None:
                    progress(done, len(items))
    finally:
        pool.shutdown(cancel_futures=True)
