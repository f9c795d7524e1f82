"""A source: its records, the declared facts, and the facts that were read from the data."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sfumato import _devices
from sfumato._cards import card
from sfumato._checks import SfumatoError
from sfumato.data.declared import TEST_FRACTION
from sfumato.data.features import SOURCE_FACTS, USER_FACTS, Cache
from sfumato.data.kinds import PUBLISHED
from sfumato.data.pieces import Part
from sfumato.data.record_users import codes_of
from sfumato.data.records import FileRecords, Records
from sfumato.data.tokens import NextWords, Tokens
from sfumato.data.transforms import FeatureTransform, Form, Images
from sfumato.data.views import Views

FACTS = ("examples", "classes", "size", "channels")
"""Facts that a guarantee depends on. Reading them from private records is not covered by it."""

LEFT_OUT = "left_out"
"""A further fact if files may be skipped."""

USERS = "users"
"""A further fact for guarantees for users."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Parts:
    """The result of a reader.

    Args:
        train, test, zoomed: as in `Source`.
        classes: class names; a label is a position in it.
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
        fingerprint: of the records, if it was computed while reading; None to compute it afterwards.
    """

    train: Part
    test: Part
    zoomed: Records | FileRecords | None = None
    classes: tuple[str, ...]
    size_rule: str
    classes_listed: bool = True
    has_own_split: bool = True
    cropped_share: float = 0.0
    filtered: bool = False
    unreadable_files: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    tokens: Tokens | None = None
    fingerprint: str | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Source:
    """A labelled data set in two parts, with its facts.

    Args:
        kind: "digits", "folder", "npz", "csv", "parquet", "hf", "torchvision" or "features"; for data
            from Python "arrays", "dataset", "hf" or "frame"; never a path.
        train: the training records: images uint8 (N, size, size, channels); features float32 (N, S, D), the first
            version for scoring, the last K for training; or texts, int32 (N, T).
        test: the test records, likewise.
        held_out: records held out from the training part, for scoring.
        zoomed: the training records with the larger images from which views with zoom are cut; None if not requested,
            or if the originals are arrays no larger than `size`.
        at_most: largest number of training records kept per user (`cap_per_user`); None for all.
        classes: class names; a label is a position in it. For `multilabel` sources the labels' names.
        examples: number of training examples for which the guarantee is computed, as declared, otherwise as counted.
        users: number of users, likewise; None if unknown.
        size: pixels on each side of every image; T for texts.
        channels: of every image; 1 for texts.
        public: whether the records are public.
        read: those of `FACTS`, and "left_out", that were read from the data instead of declared, and are not covered by
            a guarantee for examples. None for published data sets, whose facts are public.
        users_read: whether the number of users was counted in the data instead of declared.
        bit_depth, window, user_from, open_set, test_fraction: as declared. `test_fraction` is the expected share of the
            test part, if the keyed hash split the data.
        fingerprint: HMAC of all records, their parts and their classes, 64 hexadecimal digits. It covers the larger
            training images instead of the others if they were read.
        stored_digest: HMAC of the first codes of all records, over both parts together. It does not depend on the size,
            on features computed from the images, or on holding out a validation part.
        pixels: HMAC of the second codes, the same for the same images in another format; empty if unknown.
        assignment: HMACs of which records belong to one user, over both parts together (`grouping`); empty if unknown.
        features: HMAC of all features and of how they were computed, if the records are features.
        places: where the records, or the images behind the features, were read from (`places_of`); empty if unknown.
        size_rule, has_own_split, cropped_share, filtered, unreadable_files, notes, tokens: as in `Parts`.
        cache: the cache, if the records are features; size and channels are then those of the original images.
    """

    kind: str
    train: Part = field(repr=False)
    test: Part = field(repr=False)
    held_out: Part | None = field(repr=False, default=None)
    zoomed: Records | FileRecords | None = field(repr=False, default=None)
    at_most: int | None = None
    classes: tuple[str, ...]
    examples: int
    users: int | None = None
    size: int
    channels: int
    public: bool
    read: tuple[str, ...] = ()
    users_read: bool = False
    bit_depth: int | None = None
    window: Sequence[int] | None = None
    user_from: str | None = None
    open_set: bool = False
    test_fraction: float = TEST_FRACTION
    fingerprint: str = field(repr=False)
    stored_digest: str = field(repr=False, default="")
    pixels: str = field(repr=False, default="")
    assignment: str = field(repr=False, default="")
    features: str | None = field(repr=False, default=None)
    places: tuple[str, ...] = field(repr=False, default=())
    size_rule: str
    has_own_split: bool = True
    cropped_share: float = field(repr=False, default=0.0)
    filtered: bool = False
    unreadable_files: tuple[str, ...] = field(repr=False, default=())
    notes: tuple[str, ...] = field(repr=False, default=())
    tokens: Tokens | None = None
    cache: Cache | None = None

    def __post_init__(self) -> None:
        if self.zoomed is not None and not np.array_equal(self.zoomed.labels, self.train.labels):
            raise TypeError("zoomed must hold the records of train, in the same order")

    def __repr__(self) -> str:
        if self.tokens is not None:
            form = f"texts of up to {self.size} words"
        elif self.cache is not None:
            form = f"features of {self.cache.contents.width} numbers"
        else:
            form = f"images of {self.size} x {self.size} pixels {'in grey' if self.channels == 1 else 'in colour'}"
        users = "" if self.users is None else f", of {self.users:,} users"
        kind = f"{self.kind}, {'public' if self.public else 'private'}"
        named = "words" if self.next_words else "labels" if self.multilabel else "classes"
        return f"Source({kind}: {self.examples:,} {form} to train on{users}, {len(self.classes)} {named})"

    def _repr_html_(self) -> str:
        figures = [("to train on", f"{self.examples:,}"), ("classes", f"{len(self.classes):,}")]
        if self.users is not None:
            figures.append(("users", f"{self.users:,}"))
        read = ("Read from the data, and not covered by the guarantee", self.facts_read)
        return card(f"Source ({'public' if self.public else 'private'})", figures, repr(self), more=read)

    @property
    def facts_read(self) -> tuple[str, ...]:
        """The facts that were read from the data: `read`, and "users" if the users were counted."""
        return (*self.read, *((USERS,) if self.users_read else ()))

    @cached_property
    def multilabel(self) -> bool:
        """Whether a record may have none, one or many of `classes`. Its labels are then (L,) of 0 and 1."""
        return self.train.labels.ndim == 2 and not self.next_words

    @cached_property
    def next_words(self) -> bool:
        """Whether each word of a text is predicted from those before it. Labels are then (T,), positions in `classes`,
        and 0 for padding."""
        return isinstance(self.tokens, NextWords)

    @property
    def class_arguments(self) -> dict[str, tuple[str, ...]]:
        """The arguments of `open_source` that give another source the same classes. Words are part of the tokens."""
        if self.next_words:
            return {}
        return {"label_columns" if self.multilabel else "classes": self.classes}

    def synthetic_labels(self, count: int) -> np.ndarray:
        """Synthetic labels int64 (count,), (count, L) or (count, T), independent of the records. Consecutive labels
        differ."""
        if isinstance(self.tokens, NextWords):
            return self.tokens.synthetic_targets(count).numpy()
        places = np.arange(count)
        if not self.multilabel:
            return places % len(self.classes)
        return (places[:, None] + np.arange(len(self.classes))) // 2 % 2

    def require_classes(self, feature: str) -> None:
        """Refuses multilabel sources, and next words, for a feature that needs one class for each record."""
        if self.next_words or self.multilabel:
            has = "the words of its texts" if self.next_words else f"{len(self.classes)} independent labels"
            raise SfumatoError(
                f"{feature} needs one class for each record, but the source has {has}",
                "leave it out, or give a source with one label for each record",
            )

    @cached_property
    def data_digests(self) -> tuple[str, ...]:
        """The digests by which the owner's list of runs recognises the data in any form."""
        return tuple(filter(None, (self.stored_digest, self.pixels)))

    @cached_property
    def published(self) -> bool:
        """Whether the records, or the images behind the features, are published data."""
        return (self.kind if self.cache is None else self.cache.contents.source["kind"]) in PUBLISHED

    @property
    def backbone(self) -> str | None:
        """The network that computed the features; None for images, or if unknown."""
        network = None if self.cache is None else self.cache.contents.backbone
        if network is None:
            return None
        return f"{network['name']}, whitened by public images" if network.get("whitened_by") else network["name"]

    @cached_property
    def cached_views(self) -> int | None:
        """K of a cache; None for images, which allow any number of views."""
        return None if self.cache is None else self.cache.contents.views

    @property
    def form(self) -> Form:
        """The form of a model's input for each record."""
        if self.tokens is not None:
            return self.tokens
        if self.cache is not None:
            return FeatureTransform(width=self.cache.contents.width)
        return Images(size=self.size, channels=self.channels)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Shape of one record as model input: (C, H, W), (D,) or (T,)."""
        return self.form.shape

    def require_images(self, feature: str) -> None:
        """Refuses texts for a feature that needs images, such as "sfumato features"."""
        if self.tokens is not None:
            raise SfumatoError(f"{feature} is for images, but the source holds texts", "give a source of images")

    def images_for(self, views: Views) -> Part:
        """The training records with the images from which these views are cut: of `size`, or the larger ones.

        Errors: `SfumatoError` if the images are too small for the views, if the source was opened with another zoom,
            and for views of texts.
        """
        if self.tokens is not None:
            views.refuse_for_texts()
            return self.train
        views.check(self.size)
        if self.zoomed is None or views.zoom == 1:
            return self.train
        if self.zoomed.shape[1] != views.side(self.size):
            raise SfumatoError(
                f"zoom {views.zoom} needs images of {views.side(self.size)} pixels, but the source was opened with "
                f"images of {self.zoomed.shape[1]} pixels",
                f"open it with zoom={views.zoom}",
            )
        return self.zoomed


def own_codes(part: Part, owner_key: bytes) -> np.ndarray:
    """Codes uint8 (N, 32) of a part's records."""
    if part.codes is not None:
        return part.codes
    images = part.take(slice(None))
    return codes_of(owner_key, images, images)


_SPELT = {"material": "stored_digest", "parted": "has_own_split"}
"""Facts with another name in a cache."""


def facts(source: Source) -> dict[str, Any]:
    """The facts that a cache stores of its source, as plain data."""
    names = sorted(SOURCE_FACTS if source.train.users is None else SOURCE_FACTS | USER_FACTS)
    values = {name: getattr(source, _SPELT.get(name, name)) for name in names}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def from_facts(stored: Mapping[str, Any], **attributes: Any) -> Source:
    """A source from the facts stored in a cache and further attributes."""
    plain: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in stored.items()}
    return Source(**{_SPELT.get(name, name): value for name, value in plain.items()} | attributes)


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
        indices = _devices.to_device(rows, self._stored.device)
        return self._stored.index_select(0, indices), self._labels.index_select(0, indices)


def fits_on_device(records: Part, device: torch.device) -> bool:
    """Whether to keep the records there: on an accelerator, if they need at most `DEVICE_SHARE` of its free memory."""
    return device.type != "cpu" and _bytes(records) <= DEVICE_SHARE * _devices.free_memory(device)


def _bytes(records: Part) -> int:
    """Bytes of all records as stored."""
    return math.prod(records.shape) * records.take(slice(0, 0)).itemsize
