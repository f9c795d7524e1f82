"""A source: its records, the declared facts, and the facts that were read from the data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Generic, Self, TypeVar, overload

import numpy as np

from sfumato._cards import card
from sfumato._checks import SfumatoError
from sfumato._choices import NestedChoices
from sfumato.data.declared import Declared
from sfumato.data.features import SOURCE_FACTS, USER_FACTS, Cache
from sfumato.data.kinds import PUBLISHED
from sfumato.data.parts import Part, Reading, RecordSets
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

Value = TypeVar("Value")


class FieldOf(Generic[Value]):
    """Exposes a field of one of a source's components as an attribute of the source."""

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
    """Keyed digests by which the owner recognises data.

    Args:
        fingerprint: HMAC of all records, their parts and their classes, 64 hexadecimal digits. It covers the larger
            training images instead of the others if they were read.
        stored_digest: HMAC of the first codes of all records, over both parts together. It does not depend on the size,
            on features computed from the images, or on holding out a validation part.
        pixels: HMAC of the second codes, the same for the same images in another format; empty if unknown.
        assignment: HMACs of which records belong to one user, over both parts together (`grouping`); empty if unknown.
        features: HMAC of all features and of how they were computed, if the records are features.
        places: where the records, or the images behind the features, were read from (`places_of`); empty if unknown.
    """

    fingerprint: str = field(repr=False)
    stored_digest: str = field(repr=False, default="")
    pixels: str = field(repr=False, default="")
    assignment: str = field(repr=False, default="")
    features: str | None = field(repr=False, default=None)
    places: tuple[str, ...] = field(repr=False, default=())


@dataclass(frozen=True, init=False, eq=False)
class Source(NestedChoices):
    """A labelled data set in two parts, with its facts.

    The fields of its components are also attributes of the source: `source.train`, `source.size`.

    Args:
        kind: "digits", "folder", "npz", "csv", "parquet", "hf", "torchvision" or "features"; for data
            from Python "arrays", "dataset", "hf" or "frame"; never a path.
        records: the sets of records: `train`, `test`, `held_out`, `zoomed`, `at_most`.
        declared: `classes` (a label is a position in it; for `multilabel` sources the labels' names), `examples`
            (number of training examples for which the guarantee is computed), `users` (None if unknown), `size` (pixels
            on each side of every image, T for texts), `channels` (1 for texts) and `public`, as declared, otherwise as
            read; and all other declared facts.
        facts_read: those of `FACTS`, "left_out" and "users" that were read from the data instead of declared, and are
            not covered by the guarantee. At most users for published data sets, whose facts are public.
        identity: digests by which the owner recognises the data: `fingerprint` and others.
        reading: how the records were read: `size_rule`, `has_own_split`, `cropped_share`, `filtered`,
            `unreadable_files`, `tokens`, `cache`.
    """

    kind: str
    records: RecordSets = field(repr=False)
    declared: Declared
    facts_read: tuple[str, ...]
    identity: Identity = field(repr=False)
    reading: Reading

    train = FieldOf[Part]("records")
    test = FieldOf[Part]("records")
    held_out = FieldOf[Part | None]("records")
    zoomed = FieldOf[Records | FileRecords | None]("records")
    at_most = FieldOf[int | None]("records")
    classes = FieldOf[tuple[str, ...]]("declared.labels")
    size = FieldOf[int]("declared.pixels")
    channels = FieldOf[int]("declared.pixels")
    bit_depth = FieldOf[int | None]("declared.pixels")
    window = FieldOf[Sequence[int] | None]("declared.pixels")
    examples = FieldOf[int]("declared")
    users = FieldOf[int | None]("declared.people")
    user_from = FieldOf[str | None]("declared.people")
    public = FieldOf[bool]("declared")
    fingerprint = FieldOf[str]("identity")
    stored_digest = FieldOf[str]("identity")
    pixels = FieldOf[str]("identity")
    assignment = FieldOf[str]("identity")
    features = FieldOf[str | None]("identity")
    places = FieldOf[tuple[str, ...]]("identity")
    size_rule = FieldOf[str]("reading")
    has_own_split = FieldOf[bool]("reading")
    cropped_share = FieldOf[float]("reading")
    filtered = FieldOf[bool]("reading")
    notes = FieldOf[tuple[str, ...]]("reading")
    unreadable_files = FieldOf[tuple[str, ...]]("reading")
    tokens = FieldOf[Tokens | None]("reading")
    cache = FieldOf[Cache | None]("reading")

    def __init__(self, **given: Any):
        """Takes components, or their fields by name, which override the components.

        So `dataclasses.replace(source, public=True)` is the same source with another declaration.
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
        named = "words" if self.next_words else "labels" if self.multilabel else "classes"
        return f"Source({kind}: {self.examples:,} {form} to train on{users}, {len(self.classes)} {named})"

    def _repr_html_(self) -> str:
        figures = [("to train on", f"{self.examples:,}"), ("classes", f"{len(self.classes):,}")]
        if self.users is not None:
            figures.append(("users", f"{self.users:,}"))
        read = ("Read from the data, and not covered by the guarantee", self.facts_read)
        return card(f"Source ({'public' if self.public else 'private'})", figures, repr(self), more=read)

    @property
    def test_fraction(self) -> float:
        """The expected share of the test part, if the keyed hash split the data."""
        return self.declared.loading.share

    @property
    def read(self) -> tuple[str, ...]:
        """The facts that a guarantee for examples does not cover: `facts_read` without the number of users, which it
        does not use."""
        return tuple(fact for fact in self.facts_read if fact != USERS)

    @property
    def users_read(self) -> bool:
        """Whether the number of users was counted in the data instead of declared."""
        return USERS in self.facts_read

    @property
    def multilabel(self) -> bool:
        """Whether a record may have none, one or many of `classes`. Its labels are then (L,) of 0 and 1."""
        return self.train.labels.ndim == 2 and not self.next_words

    @property
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

    def require_classes(self, what: str) -> None:
        """Refuses multilabel sources, and next words, for a feature that needs one class for each record."""
        if self.next_words:
            raise SfumatoError(
                f"{what} needs one class for each record, and the words of the source's texts are predicted",
                "leave it out, or give a source with one label for each record",
            )
        if self.multilabel:
            raise SfumatoError(
                f"{what} needs one class per record, but the source has {len(self.classes)} independent labels",
                "leave it out, or give a source with one label for each image",
            )

    @property
    def data_digests(self) -> tuple[str, ...]:
        """The digests by which the owner's list of runs recognises the data in any form."""
        return tuple(filter(None, (self.stored_digest, self.pixels)))

    @property
    def published(self) -> bool:
        """Whether the records, or the images behind the features, are published data."""
        return (self.kind if self.cache is None else self.cache.contents.source["kind"]) in PUBLISHED

    @property
    def backbone(self) -> str | None:
        """The network that computed the features; None for images, or if unknown."""
        known = None if self.cache is None else self.cache.contents.backbone
        if known is None:
            return None
        return f"{known['name']}, whitened by public images" if known.get("whitened_by") else known["name"]

    @property
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

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one record as model input: (C, H, W), (D,) or (T,)."""
        return self.form.shape

    def require_images(self, what: str) -> None:
        """Refuses texts for a feature that needs images, such as "sfumato features"."""
        if self.tokens is not None:
            raise SfumatoError(f"{what} is for images, but the source holds texts", "give a source of images")

    def images_for(self, views: Views) -> Part:
        """The training records with the images from which these views are cut: of `size`, or the larger ones.

        Errors: `SfumatoError` if the images are too small for the views, if the source was opened with another zoom,
            and
        for views of texts.
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
    known = {name: getattr(source, _SPELT.get(name, name)) for name in names}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in known.items()}


def from_facts(known: Mapping[str, Any], **attributes: Any) -> Source:
    """A source from the facts stored in a cache and further attributes."""
    plain = {name: tuple(value) if isinstance(value, list) else value for name, value in known.items()}
    return Source(**{_SPELT.get(name, name): value for name, value in plain.items()} | attributes)
