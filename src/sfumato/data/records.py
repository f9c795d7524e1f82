"""What a source holds once it is read: images with their labels, in two parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from sfumato.data.images.levels import Levels

SMALLEST_SIZE = 4
"""Pixels: the fewest that an image may have on a side."""

LARGEST_SIZE = 1024
"""Pixels: the most that an image may have on a side."""

TEST_FRACTION = 0.2
"""Expected share of the test part where a source has none of its own and the owner declares no other."""

OnProgress = Callable[[int, int], None]
"""Called with (files read, files in all) while images are decoded."""


def zoomed(size: int, zoom: float) -> int:
    """Pixels on each side of the images that windows of `size` pixels are cut from.

    >>> zoomed(320, 1.2)
    384
    """
    return round(zoom * size)


@dataclass(frozen=True, kw_only=True, eq=False)
class Records:
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

    def __len__(self) -> int:
        return len(self.labels)

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

    def chosen(self, which: np.ndarray) -> Records:
        """The records where the mask (N,) is true."""
        users, groups, files, codes, times = (
            None if known is None else known[which]
            for known in (self.users, self.groups, self.files, self.codes, self.times)
        )
        return Records(
            images=self.images[which],
            labels=self.labels[which],
            users=users,
            groups=groups,
            files=files,
            codes=codes,
            rows=np.flatnonzero(which) if self.rows is None else self.rows[which],
            times=times,
        )


@dataclass(frozen=True, kw_only=True)
class Declared:
    """What the owner said about the data, checked, as every kind of source receives it.

    Args:
        owner_key: the owner's secret, for splits and fingerprints.
        classes: class names in their order, or None to read them from the data.
        label_columns: the labels of which none, one or many are true of an image, each in a column of its own.
        size: side of the images in pixels, or None to read it.
        channels: 1 or 3, or None to read it.
        levels: how pixels of 16 bits become 0 to 255, or None to refuse them.
        root: folder of a data set collection (torchvision's layout).
        download: whether a missing published data set may be fetched.
        test_fraction: expected share of the records that a split by keyed hash puts aside.
        zoom: how much larger than `size` the training images are wanted as well; 1 for not.
        user_from: how a folder says whose image each one is: "folder", a pattern that file names match, or "dicom".
        open_set: whether each part may have classes of its own.
        skip_unreadable: whether files of a folder from which no image can be read are left out.
        text_column: the columns of a table that hold its texts, or None for the one of that name.
        length: how many words are read of each text, or None for the rule's number.
        vocabulary: how many numbers words may have, likewise.
        words: a file of public words, one a line, or these words themselves; None to hash words.
        progress: called with (files read, files in all).
    """

    owner_key: bytes = field(repr=False)
    classes: tuple[str, ...] | None = None
    label_columns: tuple[str, ...] | None = None
    size: int | None = None
    channels: int | None = None
    levels: Levels | None = None
    root: str | None = None
    download: bool = False
    test_fraction: float = TEST_FRACTION
    zoom: float = 1.0
    user_from: str | None = None
    open_set: bool = False
    skip_unreadable: bool = False
    text_column: tuple[str, ...] | None = None
    length: int | None = None
    vocabulary: int | None = None
    words: str | tuple[str, ...] | None = None
    progress: OnProgress | None = None
