"""A source: where the images come from, which facts about them were declared, and which were read from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Generic, Self, TypeVar, overload

import numpy as np

from sfumato._cards import card
from sfumato._checks import SfumatoError
from sfumato._choices import OfParts
from sfumato.data.declared import Declared
from sfumato.data.features import SOURCE_FACTS, USER_FACTS, Cache
from sfumato.data.identity.owners import are_shared, codes_of
from sfumato.data.images.normalise import AsStored, Form, Images
from sfumato.data.images.views import Views
from sfumato.data.kinds import PUBLISHED
from sfumato.data.parts import Part, Reading, RecordSets
from sfumato.data.records import FileRecords, Records
from sfumato.data.tokens import Tokens

FACTS = ("examples", "classes", "size", "channels")
"""What a promise needs to know about a data set and must not learn from private records for free."""

LEFT_OUT = "left_out"
"""The further fact where files may be left out."""

USERS = "users"
"""The further fact that a promise for users needs."""

Value = TypeVar("Value")


class Of(Generic[Value]):
    """A field of one of a source's parts, as an attribute of the source."""

    def __init__(self, part: str):
        self._part = part

    def __set_name__(self, kind: type, name: str) -> None:
        self._get = attrgetter(f"{self._part}.{name}")

    @overload
    def __get__(self, source: None, kind: type) -> Self: ...

    @overload
    def __get__(self, source: Any, kind: type) -> Value: ...

    def __get__(self, source: Any, kind: type) -> Value | Self:
        return self if source is None else self._get(source)


@dataclass(frozen=True, kw_only=True)
class Identity:
    """By what the data are known again, to whoever has the owner's key.

    Args:
        fingerprint: HMAC of all records, their parts and their classes, 64 hexadecimal digits; of the larger training
            images in place of the others where there are such.
        stored_digest: HMAC of the first codes of all records: the same for all sizes and features of the same images,
            for both parts together, and for what is left of them where a validation part is put aside.
        pixels: the same of their second codes, and so of the same images in another format; empty where it is not
            known.
        assignment: HMAC of which record is whose, for both parts together: two sources that call other records one
            user's have another; empty where nobody knows.
        features: HMAC of all features and of how they came about, where the records are such: of the same images there
            may be many.
        places: where the records were read from (`places_of`), and those that they are the features of; empty where
            that is not known.
    """

    fingerprint: str = field(repr=False)
    stored_digest: str = field(repr=False, default="")
    pixels: str = field(repr=False, default="")
    assignment: str = field(repr=False, default="")
    features: str | None = field(repr=False, default=None)
    places: tuple[str, ...] = field(repr=False, default=())


@dataclass(frozen=True, init=False, eq=False)
class Source(OfParts):
    """A labelled set of images in two parts, with what may be said about it.

    The fields of its parts are attributes of the source as well: `source.train`, `source.size`.

    Args:
        kind: "digits", "folder", "npz", "csv", "parquet", "webdataset", "hf", "torchvision" or "features"; of data from
            Python "arrays", "dataset", "hf" or "frame"; never a path.
        records: the records themselves, in their sets: `train`, `test`, `held_out`, `zoomed`, `at_most`.
        declared: `classes` (a label is a position in it; where the source is `multilabel`, the labels' names),
            `examples` (the number of training examples that the promise is computed for), `users` (None where nobody
            knows whose record each one is), `size` (pixels on each side of every image, T of texts), `channels` (1 of
            texts) and `public` as they were declared, else as they were read; whatever else was declared.
        facts_read: which of `FACTS` and of "left_out" and "users" were read from the data rather than declared, and
            are not covered by the promise. Nothing but users for published data sets, whose facts everybody knows.
        identity: by what the data are known again: `fingerprint` and others.
        reading: how the records were read: `size_rule`, `has_own_split`, `cropped_share`, `filtered`,
            `unreadable_files`, `tokens`, `cache`.
    """

    kind: str
    records: RecordSets = field(repr=False)
    declared: Declared
    facts_read: tuple[str, ...]
    identity: Identity = field(repr=False)
    reading: Reading

    train = Of[Part]("records")
    test = Of[Part]("records")
    held_out = Of[Part | None]("records")
    zoomed = Of[Records | FileRecords | None]("records")
    at_most = Of[int | None]("records")
    classes = Of[tuple[str, ...]]("declared.labels")
    size = Of[int]("declared.pixels")
    channels = Of[int]("declared.pixels")
    bit_depth = Of[int | None]("declared.pixels")
    window = Of[Sequence[int] | None]("declared.pixels")
    examples = Of[int]("declared")
    users = Of[int | None]("declared.people")
    user_from = Of[str | None]("declared.people")
    public = Of[bool]("declared")
    fingerprint = Of[str]("identity")
    stored_digest = Of[str]("identity")
    pixels = Of[str]("identity")
    assignment = Of[str]("identity")
    features = Of[str | None]("identity")
    places = Of[tuple[str, ...]]("identity")
    size_rule = Of[str]("reading")
    has_own_split = Of[bool]("reading")
    cropped_share = Of[float]("reading")
    filtered = Of[bool]("reading")
    notes = Of[tuple[str, ...]]("reading")
    unreadable_files = Of[tuple[str, ...]]("reading")
    in_neither_part = Of[int]("reading")
    tokens = Of[Tokens | None]("reading")
    cache = Of[Cache | None]("reading")

    def __init__(self, **given: Any):
        """Of its parts, or of their fields by their own names, which go over what the parts say.

        So `dataclasses.replace(source, public=True)` is the same source, with another declaration.
        """
        known = given.get("facts_read", ())
        read = given.pop("read", tuple(fact for fact in known if fact != USERS))
        counted = (USERS,) if given.pop("users_read", USERS in known) else ()
        super().__init__(**{**given, "facts_read": (*read, *counted)})

    def __repr__(self) -> str:
        if self.tokens is not None:
            form = f"texts of up to {self.size} words"
        elif self.cache is not None:
            form = f"features of {self.cache.contents.width} numbers"
        else:
            form = f"images of {self.size} x {self.size} pixels {'in grey' if self.channels == 1 else 'in colour'}"
        users = "" if self.users is None else f", of {self.users:,} users"
        kind = f"{self.kind}, {'public' if self.public else 'private'}"
        named = "labels" if self.multilabel else "classes"
        return f"Source({kind}: {self.examples:,} {form} to train on{users}, {len(self.classes)} {named})"

    def _repr_html_(self) -> str:
        figures = [("to train on", f"{self.examples:,}"), ("classes", f"{len(self.classes):,}")]
        if self.users is not None:
            figures.append(("users", f"{self.users:,}"))
        read = ("Read from the data, and not covered by a promise", self.facts_read)
        return card(f"Source ({'public' if self.public else 'private'})", figures, repr(self), more=read)

    @property
    def test_fraction(self) -> float:
        """The expected share of the test part, where the keyed hash split."""
        return self.declared.loading.share

    @property
    def read(self) -> tuple[str, ...]:
        """Which facts a promise for examples does not cover: it makes no use of the users' number, as one for users
        does (`facts_read`)."""
        return tuple(fact for fact in self.facts_read if fact != USERS)

    @property
    def users_read(self) -> bool:
        """Whether the number of users was counted in the data rather than declared."""
        return USERS in self.facts_read

    @property
    def shared(self) -> bool:
        """Whether records have several users, or nobody: among those to train on, or wherever it was read."""
        return self.reading.shared or are_shared(self.train.users)

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
        return tuple(filter(None, (self.stored_digest, self.pixels)))

    @property
    def published(self) -> bool:
        """Whether the records are a published collection, or the features of one."""
        return (self.kind if self.cache is None else self.cache.contents.source["kind"]) in PUBLISHED

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

    def images_for(self, views: Views) -> Part:
        """The training records with the images that these views are cut out of: of `size`, or the larger ones.

        Errors: `SfumatoError` for views that the images are too small for, or that were not asked for in opening; and
        for any of texts.
        """
        if self.tokens is not None:
            views.refuse_for_texts()
            return self.train
        views.check(self.size)
        if self.zoomed is None or views.zoom == 1:
            return self.train
        if self.zoomed.shape[1] != views.side(self.size):
            raise SfumatoError(
                f"zoom {views.zoom} wants images of {views.side(self.size)} pixels, and the source was opened for "
                f"those of {self.zoomed.shape[1]}",
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
"""What a cache calls otherwise."""


def facts(source: Source) -> dict[str, Any]:
    """What a cache keeps of the source that it is made from, as plain data."""
    names = sorted(SOURCE_FACTS if source.train.users is None else SOURCE_FACTS | USER_FACTS)
    known = {name: getattr(source, _SPELT.get(name, name)) for name in names}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in known.items()}


def from_facts(known: Mapping[str, Any], **attributes: Any) -> Source:
    """The source that a cache has kept these facts of, and has in these further attributes."""
    plain = {name: tuple(value) if isinstance(value, list) else value for name, value in known.items()}
    return Source(**{_SPELT.get(name, name): value for name, value in plain.items()} | attributes)
