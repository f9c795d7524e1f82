"""Results of readers, and records that are kept on a device."""

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
    """The sets of records of a source.

    Args:
        train: the training records: images uint8 (N, size, size, channels); features float32 (N, S, D), the first
            version for scoring, the last K for training; or texts, int32 (N, T).
        test: the test records, likewise.
        held_out: records held out from the training part, for scoring.
        zoomed: the training records with the larger images from which views with zoom are cut; None if not requested,
            or if the originals are arrays no larger than `size`.
        at_most: largest number of training records kept per user (`cap_per_user`); None for all.
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
        size_rule: how the size of the images was chosen, in words.
        classes_listed: whether the owner or the file listed the classes, so that classes without images are intended;
            otherwise the list comes from the labels.
        has_own_split: whether the data came in two parts; otherwise a keyed hash made them.
        cropped_share: share of an image that the central crop leaves out, median over all images, if known. For the
            owner alone.
        filtered: whether the set was filtered by looking at private data, so that models trained on it reveal them.
        unreadable_files: skipped files that could not be read as images. For the owner alone.
        notes: further notes on the reading. For the owner alone.
        tokens: conversion of texts to numbers, if the records are texts.
        cache: the cache, if the records are features; size and channels are then those of the original images.
    """

    size_rule: str
    classes_listed: bool = True
    has_own_split: bool = True
    cropped_share: float = field(repr=False, default=0.0)
    filtered: bool = False
    unreadable_files: tuple[str, ...] = field(repr=False, default=())
    notes: tuple[str, ...] = field(repr=False, default=())
    tokens: Tokens | None = None
    cache: Cache | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Parts:
    """The result of a reader.

    Args:
        classes: class names; a label is a position in it.
        fingerprint: of the records, if it was computed while reading; None to compute it afterwards.
    """

    records: RecordSets
    classes: tuple[str, ...]
    reading: Reading
    fingerprint: str | None = field(repr=False, default=None)


DEVICE_SHARE = 0.25
"""Share of an accelerator's free memory for the records. Activations need most of it."""
BLOCK = 1 << 26
"""Bytes per copy."""


class DeviceRecords:
    """Records and their labels on a device.

    **Guarantee.** Each row is the stored record, and `take` returns the requested rows, so a step has the same inputs
    as if it read the records itself. All records are copied once, before the first step. Afterwards only positions are
    sent to the device.

    Args:
        records: N images uint8 (N, S, S, C), or texts int32 (N, T).
        device: target of the copy.
        advance: called with the number of records copied so far.
    """

    def __init__(self, records: Part, device: torch.device, advance: Callable[[int], None] = lambda done: None):
        each = max(1, BLOCK // max(1, _bytes(records) // max(1, len(records))))
        dtype = torch.from_numpy(records.take(slice(0, 0)).copy()).dtype
        self._stored = torch.empty(records.shape, dtype=dtype, device=device)
        for start in range(0, len(records), each):
            block = records.take(slice(start, start + each))
            self._stored[start : start + each] = _devices.to_device(np.require(block, requirements=["C", "W"]), device)
            advance(min(start + each, len(records)))
        self._labels = _devices.to_device(np.require(records.labels, requirements=["C", "W"]), device)

    def take(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """The records in these rows (n,) as stored, (n, ...), and their labels (n,) or (n, L)."""
        there = _devices.to_device(rows, self._stored.device)
        return self._stored.index_select(0, there), self._labels.index_select(0, there)


def fits_on_device(records: Part, device: torch.device) -> bool:
    """Whether to keep the records there: on an accelerator, if they need at most `DEVICE_SHARE` of its free memory."""
    return device.type != "cpu" and _bytes(records) <= DEVICE_SHARE * _devices.free_memory(device)


def _bytes(records: Part) -> int:
    """Bytes of all records as stored."""
    return math.prod(records.shape) * records.take(slice(0, 0)).itemsize
