"""What one kind of source hands back once it is read."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from sfumato.data.caches.features import Cache
from sfumato.data.caches.pieces import CachedRecords
from sfumato.data.records import FileRecords, Records, TextRecords
from sfumato.data.texts.tokens import Tokens

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
