"""A source: where the images come from, which facts about them were declared, and which were read from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sfumato._checks import SfumatoError
from sfumato.data.caches.features import LATER_FACTS, SOURCE_FACTS, USER_FACTS, Cache
from sfumato.data.caches.pieces import CachedRecords
from sfumato.data.file_records import FileRecords
from sfumato.data.form import Form, Images
from sfumato.data.identity.codes import codes_of
from sfumato.data.images.normalise import AsStored
from sfumato.data.images.views import Views
from sfumato.data.kinds import KINDS
from sfumato.data.records import TEST_FRACTION, Records
from sfumato.data.texts.records import TextRecords
from sfumato.data.texts.tokens import Tokens

Part = Records | FileRecords | TextRecords | CachedRecords

FACTS = ("examples", "classes", "size", "channels")
"""What a promise needs to know about a data set and must not learn from private records for free."""

LEFT_OUT = "left_out"
"""The further fact where files may be left out."""

USERS = "users"
"""The further fact that a promise for users needs."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Source:
    """A labelled set of images in two parts, with what may be said about it.

    Args:
        kind: "digits", "folder", "npz", "csv", "torchvision" or "features"; never a path.
        train: the training records; images uint8 (N, size, size, channels), or features float32 (N, S, D), of which the
            first is what a record is scored on and the last K are what it is trained on; or texts, int32 (N, T).
        test: the records that none is trained on, likewise.
        classes: class names; a label is a position in it. Where the source is `multilabel`, the labels' names.
        size: pixels on each side of every image; T of texts.
        channels: 1 (grey) or 3 (red, green, blue); 1 of texts.
        examples: the number of training examples that the promise is computed for: as declared, else counted.
        read: which of `FACTS` were read from the data rather than declared, and are not covered by the promise.
            Nothing for published data sets, whose facts everybody knows.
        public: whether the records are public, so that figures measured on them may be shown.
        fingerprint: HMAC of everything above under the owner's key, 64 hexadecimal digits; of the larger training
            images in place of the others where there are such.
        size_rule: how the size came about, in words.
        cut: the share of an image that its middle square leaves out, in the middle of all images, as far as it is
            known: for the owner's eyes.
        bit_depth: what was declared of pixels of 16 bits (`Levels`); None for nothing, and for a cache, whose transform
            has it.
        window: likewise.
        left_out: the files from which no image could be read, where such may be left out: for the owner's eyes.
        filtered: whether the set was filtered by looking at private data, so that what is trained on it tells of those.
        parted: whether the two parts were made beforehand, in an order of their own; otherwise a keyed hash made them.
        test_fraction: the expected share of the test part, where the keyed hash split.
        cache: where the records are features; size and channels are then those of the images behind them.
        features: HMAC of all features and of how they came about, under the owner's key, where the records are such: of
            the same images there may be many.
        material: HMAC of the first codes of all records under the owner's key: the same for all sizes and features of
            the same images, for both parts together, and for what is left of them where a validation part is put
            aside.
        pixels: the same of their second codes, and so of the same images in another format; empty where it is not
            known.
        larger: the training records once more, with the larger images that views with zoom are cut out of; None
            where that was not asked for, or where the originals are arrays that are no larger than `size`.
        held_out: the records that were held out of the training part, to score on.
        users: the number of users of the training part: as declared, else counted; None where nobody knows whose
            record each one is.
        users_read: whether that number was counted in the data rather than declared.
        user_from: by which rule a folder said whose image each one is; None for others.
        places: where the records were read from (`places_of`), and those that they are the features of; empty where
            that is not known.
        assignment: HMAC of which record is whose under the owner's key, for both parts together: two sources that call
            other records one user's have another; empty where nobody knows.
        at_most: how many training records of each user were kept at most (`capped`); None for all of them.
        tokens: how texts became numbers, where the records are such.
    """

    kind: str
    train: Part = field(repr=False)
    test: Part = field(repr=False)
    classes: tuple[str, ...]
    size: int
    channels: int
    examples: int
    read: tuple[str, ...]
    public: bool
    fingerprint: str = field(repr=False)
    size_rule: str
    cut: float = field(repr=False, default=0.0)
    bit_depth: int | None = None
    window: Sequence[int] | None = None
    left_out: tuple[str, ...] = field(repr=False, default=())
    filtered: bool = False
    parted: bool = True
    test_fraction: float = TEST_FRACTION
    cache: Cache | None = None
    features: str | None = field(repr=False, default=None)
    material: str = field(repr=False, default="")
    pixels: str = field(repr=False, default="")
    larger: Records | FileRecords | None = field(repr=False, default=None)
    held_out: Part | None = field(repr=False, default=None)
    users: int | None = None
    users_read: bool = False
    user_from: str | None = None
    places: tuple[str, ...] = field(repr=False, default=())
    assignment: str = field(repr=False, default="")
    at_most: int | None = None
    tokens: Tokens | None = None

    def __post_init__(self) -> None:
        if self.larger is not None and not np.array_equal(self.larger.labels, self.train.labels):
            raise TypeError("larger must hold the records of train, in the same order")

    def __repr__(self) -> str:
        if self.tokens is not None:
            form = f"texts of up to {self.size} words"
        elif self.cache is not None:
            form = f"features of {self.cache.contents.width} numbers"
        else:
            form = f"images of {self.size} x {self.size} pixels {'in grey' if self.channels == 1 else 'in colour'}"
        users = "" if self.users is None else f", of {self.users:,} users"
        told = f"{self.kind}, {'public' if self.public else 'private'}"
        named = "labels" if self.multilabel else "classes"
        return f"Source({told}: {self.examples:,} {form} to train on{users}, {len(self.classes)} {named})"

    @property
    def multilabel(self) -> bool:
        """Whether none, one or many of `classes` are true of a record, whose labels are then (L,) of 0 and 1."""
        return self.train.labels.ndim == 2

    @property
    def naming(self) -> dict[str, tuple[str, ...]]:
        """What another source must declare to have the same classes, as `open_source` takes it."""
        return {"label_columns" if self.multilabel else "classes": self.classes}

    def synthetic_labels(self, count: int) -> np.ndarray:
        """Labels int64 (count,) or (count, L) that no record had a part in, different from one to the next."""
        places = np.arange(count)
        if not self.multilabel:
            return places % len(self.classes)
        return (places[:, None] + np.arange(len(self.classes))) // 2 % 2

    def require_classes(self, what: str) -> None:
        """Refuse several labels for what needs one class for each record."""
        if self.multilabel:
            raise SfumatoError(
                f"{what} needs one class for each record, and the source has {len(self.classes)} labels that may all "
                "be true",
                "leave it out, or give a source with one label for each image",
            )

    @property
    def materials(self) -> tuple[str, ...]:
        """By what the owner's list of runs knows the data again, in any of their forms."""
        return tuple(filter(None, (self.material, self.pixels)))

    @property
    def read_by_user(self) -> tuple[str, ...]:
        """Which facts a promise for users does not cover: those of `read`, and the users' number where it was counted.

        Apart from `read`, since a promise for examples makes no use of the users' number.
        """
        return (*self.read, USERS) if self.users_read else self.read

    @property
    def published(self) -> bool:
        """Whether the records are a published collection, or the features of one."""
        return KINDS[self.kind if self.cache is None else self.cache.contents.source["kind"]].published

    @property
    def backbone(self) -> str | None:
        """The network whose features the records are, where they are such and it is known."""
        known = None if self.cache is None else self.cache.contents.backbone
        return None if known is None else known["name"]

    @property
    def cached_views(self) -> int | None:
        """K of a cache; None for images, of which any number of views can be made."""
        return None if self.cache is None else self.cache.contents.views

    @property
    def form(self) -> Form:
        """What a model is given of each record."""
        if self.tokens is not None:
            return self.tokens
        if self.cache is not None:
            return AsStored(width=self.cache.contents.width)
        return Images(size=self.size, channels=self.channels)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one record as a model takes it: (C, H, W), (D,) or (T,)."""
        return self.form.shape

    def require_images(self, what: str) -> None:
        """Refuse a source of texts for what is done with images alone, such as "sfumato features"."""
        if self.tokens is not None:
            raise SfumatoError(f"{what} is for images, and the source holds texts", "give a source of images")

    def shown(self, views: Views) -> Part:
        """The training records with the images that these views are cut out of: of `size`, or the larger ones.

        Errors: `SfumatoError` for views that the images are too small for, or that were not asked for in opening; and
        for any of texts.
        """
        if self.tokens is not None:
            views.refuse_for_texts()
            return self.train
        views.check(self.size)
        if self.larger is None or views.zoom == 1:
            return self.train
        if self.larger.shape[1] != views.side(self.size):
            raise SfumatoError(
                f"zoom {views.zoom} wants images of {views.side(self.size)} pixels, and the source was opened for "
                f"those of {self.larger.shape[1]}",
                f"open it with zoom={views.zoom}",
            )
        return self.larger


def own_codes(part: Part, owner_key: bytes) -> np.ndarray:
    """Codes uint8 (N, 32) of a part's records."""
    if part.codes is not None:
        return part.codes
    images = part.take(slice(None))
    return codes_of(owner_key, images, images)


def facts(source: Source) -> dict[str, Any]:
    """What a cache keeps of the source that it is made from, as plain data."""
    left_out = USER_FACTS if source.train.users is None else frozenset()
    known = {name: getattr(source, name) for name in sorted((SOURCE_FACTS | LATER_FACTS) - left_out)}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in known.items()}
