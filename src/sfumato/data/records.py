"""What a source holds once it is read: images with their labels, in two parts."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Self

import numpy as np


class Chosen:
    """What all records in arrays have in common: each array has a row for each record."""

    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def chosen(self, which: np.ndarray) -> Self:
        """The records where the mask (N,) is true."""
        arrays = {one.name: getattr(self, one.name) for one in fields(self) if one.init}  # type: ignore[arg-type]
        kept = {name: known[which] for name, known in arrays.items() if isinstance(known, np.ndarray)}
        if "rows" in arrays and arrays["rows"] is None:
            kept["rows"] = np.flatnonzero(which)
        return replace(self, **kept)  # type: ignore[type-var]


@dataclass(frozen=True, kw_only=True, eq=False)
class Records(Chosen):
    """One part of a source: N pictures of one size, and the class of each.

    Args:
        images: uint8 array (N, H, W, C), C = 1 (grey) or 3 (red, green, blue), 0 is black.
        labels: int64 array (N,), positions in the source's class list; or (N, L) of 0 and 1, whether each of its L
            labels is true of the image.
        users: array (N,) of text that says whose image each one is, where the source knows.
        groups: array (N,) of text, the public group that each image's user belongs to, likewise.
        files: array (N,) of the paths of the files that the images come from, likewise.
        codes: uint8 array (N, 32), each record's own two (`codes`); None to make them of the images as they are.
        rows: int64 array (N,) of where the records stand in the array that they come from; None where they are all of
            it, in its order.
        times: array (N,) of each record's own time stamp (`TimeStamp`), where the source knows.

    >>> part = Records(images=np.zeros((2, 8, 8, 1), np.uint8), labels=np.array([0, 1]))
    >>> len(part), part.images.shape
    (2, (2, 8, 8, 1))
    """

    images: np.ndarray = field(repr=False)
    labels: np.ndarray = field(repr=False)
    users: np.ndarray | None = field(repr=False, default=None)
    groups: np.ndarray | None = field(repr=False, default=None)
    files: np.ndarray | None = field(repr=False, default=None)
    codes: np.ndarray | None = field(repr=False, default=None)
    rows: np.ndarray | None = field(repr=False, default=None)
    times: np.ndarray | None = field(repr=False, default=None)

    def __post_init__(self):
        images, labels = self.images, self.labels
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] not in (1, 3):
            raise TypeError(f"images must be uint8 (N, H, W, 1 or 3), got {images.dtype} {images.shape}")
        if labels.dtype != np.int64 or labels.ndim not in (1, 2) or len(labels) != len(images):
            raise TypeError(
                f"labels must be int64 ({len(images)},) or ({len(images)}, L), got {labels.dtype} {labels.shape}"
            )
        for name, known in (("users", self.users), ("groups", self.groups), ("times", self.times)):
            if known is not None and known.shape != labels.shape[:1]:
                raise TypeError(f"{name} must have the shape ({len(images)},), got {known.shape}")

    @property
    def shape(self) -> tuple[int, ...]:
        """N, H, W, C."""
        return self.images.shape

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return self.images.nbytes

    def take(self, rows: np.ndarray | slice) -> np.ndarray:
        """Images uint8 (n, H, W, C) of the records at these positions."""
        return self.images[rows]
