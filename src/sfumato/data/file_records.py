"""Records whose images stay in their files, and files read in several threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np

from sfumato.data.declared import OnProgress
from sfumato.data.images import decoding as images
from sfumato.data.images.levels import Levels
from sfumato.data.records import Chosen

Item = TypeVar("Item")
Result = TypeVar("Result")

_BLOCK = 4096


@dataclass(frozen=True, kw_only=True, eq=False)
class FileRecords(Chosen):
    """One part of a source whose images stay in their files and are decoded whenever they are asked for.

    For sets that memory cannot hold; the images are those that `Records` would hold.

    Args:
        files: array (N,) of paths.
        labels: int64 array (N,) or (N, L), as of `Records`.
        codes: uint8 array (N, 32), each record's own two (`codes`).
        users: array (N,) of text that says whose image each one is, where the source knows.
        groups: array (N,) of text, the public group that each image's user belongs to, likewise.
        times: array (N,) of each record's own time stamp (`TimeStamp`), likewise.
        size, channels: what every image is brought to.
        levels: what was declared of pixels of 16 bits.
    """

    files: np.ndarray = field(repr=False)
    labels: np.ndarray = field(repr=False)
    codes: np.ndarray = field(repr=False)
    users: np.ndarray | None = field(repr=False, default=None)
    groups: np.ndarray | None = field(repr=False, default=None)
    times: np.ndarray | None = field(repr=False, default=None)
    size: int
    channels: int
    levels: Levels | None = None

    @property
    def shape(self) -> tuple[int, int, int, int]:
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
        content = images.read_bytes(path)
        return images.decode(content, path, size=self.size, channels=self.channels, levels=self.levels)


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
