"""What one kind of source hands back once it is read; a part with further records behind it, as a run's steps take
them; and records that lie on a device from the first step on."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from sfumato import _devices
from sfumato.data.features import Cache
from sfumato.data.pieces import CachedRecords
from sfumato.data.records import FileRecords, Records, TextRecords
from sfumato.data.tokens import Tokens

Part = Records | FileRecords | TextRecords | CachedRecords


@dataclass(frozen=True, kw_only=True, eq=False)
class RecordSets:
    """The records, in the sets that they are used in.

    Args:
        train: the training records; images uint8 (N, size, size, channels), or features float32 (N, S, D), of which the
            first is what a record is scored on and the last K are what it is trained on; or texts, int32 (N, T).
        test: the records that none is trained on, likewise.
        held_out: the records that were held out of the training part, to score on.
        zoomed: the training records once more, with the larger images that views with zoom are cut out of; None
            where that was not asked for, or where the originals are arrays that are no larger than `size`.
        at_most: how many training records of each user were kept at most (`capped`); None for all of them.
    """

    train: Part = field(repr=False)
    test: Part = field(repr=False)
    held_out: Part | None = field(repr=False, default=None)
    zoomed: Records | FileRecords | None = field(repr=False, default=None)
    at_most: int | None = None

    def __post_init__(self) -> None:
        if self.zoomed is not None and not np.array_equal(self.zoomed.labels, self.train.labels):
            raise TypeError("zoomed must hold the records of train, in the same order")


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How the records were read.

    Args:
        size_rule: how the images' size came about, in words.
        classes_listed: whether somebody wrote the class list down (the owner or the file), so that a class without
            any image is meant; otherwise the list is what the labels show.
        has_own_split: whether the two parts were made beforehand, in an order of their own; otherwise a keyed hash
            made them.
        cropped_share: the share of an image that its middle square leaves out, in the middle of all images, as far as
            it is known: for the owner's eyes.
        filtered: whether the set was filtered by looking at private data, so that what is trained on it tells of those.
        unreadable_files: the files from which no image could be read, where such may be left out: for the owner's eyes.
        in_neither_part: how many records were left out, as the split puts their users on both sides; for the owner's
            eyes.
        notes: what else the owner is to know of how they were read; for the owner's eyes.
        shared: whether any record has several users, or nobody.
        tokens: how texts became numbers, where the records are such.
        cache: where the records are features; size and channels are then those of the images that they were made of.
    """

    size_rule: str
    classes_listed: bool = True
    has_own_split: bool = True
    cropped_share: float = field(repr=False, default=0.0)
    filtered: bool = False
    unreadable_files: tuple[str, ...] = field(repr=False, default=())
    in_neither_part: int = field(repr=False, default=0)
    notes: tuple[str, ...] = field(repr=False, default=())
    shared: bool = False
    tokens: Tokens | None = None
    cache: Cache | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Parts:
    """What a reader hands back.

    Args:
        classes: class names; a label is a position in it.
        fingerprint: of the records, where they were read in its order anyway; None to read them for it.
    """

    records: RecordSets
    classes: tuple[str, ...]
    reading: Reading
    fingerprint: str | None = field(repr=False, default=None)


@dataclass(frozen=True, kw_only=True, eq=False)
class Appended:
    """All records of two parts: first those of one, in their places, then those of the other.

    Args:
        first, then: with images, or texts, of one size, and labels of one form.
        named: whose each of the further records is, (M,) of text; None where users play no part.

    >>> from sfumato.data import Records
    >>> one = Records(images=np.zeros((2, 8, 8, 1), np.uint8), labels=np.array([0, 1]))
    >>> both = Appended(first=one, then=one)
    >>> len(both), both.take(np.array([3, 0])).shape, both.labels.tolist()
    (4, (2, 8, 8, 1), [0, 1, 0, 1])
    """

    first: Part = field(repr=False)
    then: Part = field(repr=False)
    named: np.ndarray | None = field(repr=False, default=None)

    def __len__(self) -> int:
        return len(self.first) + len(self.then)

    @property
    def shape(self) -> tuple[int, ...]:
        """N, H, W, C of images; N, T of texts."""
        return (len(self), *self.first.shape[1:])

    @property
    def labels(self) -> np.ndarray:
        """int64 (N,) or (N, L)."""
        return np.concatenate([self.first.labels, self.then.labels])

    @property
    def users(self) -> np.ndarray | None:
        """(N,) of text, where the first part's are known."""
        if self.first.users is None or self.named is None:
            return None
        return np.concatenate([self.first.users, self.named])

    def take(self, rows: np.ndarray | slice) -> np.ndarray:
        """What the records at these positions hold, in their order."""
        rows = np.arange(len(self))[rows]
        later = rows >= len(self.first)
        found = np.empty((len(rows), *self.first.shape[1:]), self.first.take(slice(0, 0)).dtype)
        for part, chosen, start in ((self.first, ~later, 0), (self.then, later, len(self.first))):
            if chosen.any():
                found[chosen] = part.take(rows[chosen] - start)
        return found


DEVICE_SHARE = 0.25
"""How much of an accelerator's free memory the records may take; most of it is for a step's activations."""
BLOCK = 1 << 26
"""Bytes that are copied at once."""


class Held:
    """Records and their labels on a device.

    **Guarantee.** Each row is its record as it is stored, and `take` gives the rows asked for, so a step's inputs are
    those that reading the records in the step would give. All records are copied, once, before the first step; later
    only positions go to the device.

    Args:
        records: N images uint8 (N, S, S, C), or texts int32 (N, T).
        device: where they go.
        advance: is told how many have been copied.
    """

    def __init__(self, records: Part, device: torch.device, advance: Callable[[int], None] = lambda done: None):
        each = max(1, BLOCK // max(1, _bytes(records) // max(1, len(records))))
        dtype = torch.from_numpy(records.take(slice(0, 0)).copy()).dtype
        self._stored = torch.empty(records.shape, dtype=dtype, device=device)
        for start in range(0, len(records), each):
            block = records.take(slice(start, start + each))
            self._stored[start : start + each] = _devices.sent(np.require(block, requirements=["C", "W"]), device)
            advance(min(start + each, len(records)))
        self._labels = _devices.sent(np.require(records.labels, requirements=["C", "W"]), device)

    def take(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """The records in these rows (n,) as they are stored, (n, ...), and their labels (n,) or (n, L)."""
        there = _devices.sent(rows, self._stored.device)
        return self._stored.index_select(0, there), self._labels.index_select(0, there)


def fits(records: Part, device: torch.device) -> bool:
    """Whether they are to lie there: on an accelerator, where they take at most a share of its free memory."""
    return device.type != "cpu" and _bytes(records) <= DEVICE_SHARE * _devices.free_memory(device)


def _bytes(records: Part) -> int:
    """Of all records as they are stored."""
    return math.prod(records.shape) * records.take(slice(0, 0)).itemsize
