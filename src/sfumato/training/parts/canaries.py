"""Canaries: synthetic or public records, each included in a run's training examples or left out by a fair coin."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sfumato._checks import SfumatoError
from sfumato.data import Appended, Part, Records, Source, TextRecords, find_known, open_source, own_codes
from sfumato.data.images.decoding import prepare_array
from sfumato.randomness import RunKey, owner_key

MADE_BY = 0
"""The public seed for making canaries, or for drawing them from a public source."""
COINS = "audit coins"
"""The stream of the run key for the coins; used for nothing else."""
_LAST = chr(0x10FFFF)
"""Prefix of the canaries' user names, which sorts them after all others, so that those keep their places."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Canaries:
    """Canary records, which do not depend on private records.

    Args:
        records: M records, stored like those of the source.
        zoomed: the same with larger images, if the source has them.
        spec: the public source that they come from; None for synthetic ones.
    """

    records: Part = field(repr=False)
    zoomed: Part | None = field(repr=False, default=None)
    spec: str | None = None

    def __len__(self) -> int:
        return len(self.records)

    @property
    def digest(self) -> str:
        """SHA-256 of the records and their labels."""
        held = (self.records.take(slice(None)), self.records.labels)
        return hashlib.sha256(b"".join(np.ascontiguousarray(one).tobytes() for one in held)).hexdigest()

    def coins(self, key: RunKey) -> np.ndarray:
        """Whether each canary is included, bool (M,).

        **Guarantee.** Each coin is fair, and independent of the others and of every other draw of the run (`RunKey`):
        participants and noise reveal nothing about the coins. No coin depends on any record.
        """
        return flip_coins(key, len(self))

    def appended_to(self, source: Source, key: RunKey) -> Source:
        """The source with the included canaries after its training records, each with its own user.

        **Guarantee.** The private records keep their places, and only the coins decide which canaries follow them. So
        for every outcome of the coins, the steps are those of the plan on data sets that still differ in the same one
        unit, and the plan's theorem holds unchanged.
        """
        chosen = self.coins(key)
        names = np.array([f"{_LAST}{place}" for place in np.flatnonzero(chosen)], dtype=np.str_)

        def followed(first: Any, then: Part) -> Any:
            return Appended(first=first, then=then.select(chosen), named=names)

        zoomed = None if self.zoomed is None else followed(source.zoomed, self.zoomed)
        return replace(source, train=followed(source.train, self.records), zoomed=zoomed)


def flip_coins(key: RunKey, count: int) -> np.ndarray:
    """Whether each of `count` canaries is included, bool (count,): see `Canaries.coins`."""
    return key.generator(COINS, 0).random(count) < 0.5


def synthetic(count: int, source: Source) -> Canaries:
    """Synthetic canaries with the source's shape and classes, from a public seed."""
    generator = np.random.default_rng(MADE_BY)
    labels = _labels(generator, count, source)
    if source.tokens is not None:
        tokens = source.tokens.synthetic(count + 4)[4:].numpy().astype(np.int32)
        return Canaries(records=TextRecords(tokens=tokens, labels=labels, codes=np.zeros((count, 32), np.uint8)))
    images = patterns(generator, count, size=source.size, channels=source.channels)
    return _with_zoomed(source, lambda side: images if side == source.size else _enlarge(images, side), labels)


def patterns(generator: np.random.Generator, count: int, *, size: int, channels: int) -> np.ndarray:
    """Images of noise, uint8 (count, size, size, channels)."""
    return generator.integers(256, size=(count, size, size, channels), dtype=np.uint8)


def from_public(spec: str, count: int, source: Source) -> Canaries:
    """Canaries from a public source, with random labels.

    Errors: `SfumatoError` for a source that holds too few images, or private records.
    """
    given = f"audit_source {spec}"
    if source.tokens is not None:
        raise SfumatoError(
            f"{given} is for images, but the source holds texts", "leave it out to use synthetic canaries"
        )
    like: dict[str, Any] = {"size": source.size, "channels": source.channels, "open_set": True}
    opened = open_source(spec, owner_key=owner_key(), public=True, **like)
    if opened.cache is not None or len(opened.train) < count:
        held = "holds features" if opened.cache is not None else f"has {len(opened.train)} training examples"
        raise SfumatoError(f"{given} {held}, but {count} images are needed", "give another source, or fewer canaries")
    generator = np.random.default_rng(MADE_BY)
    chosen = np.zeros(len(opened.train), bool)
    chosen[generator.permutation(len(opened.train))[:count]] = True
    part = opened.train.select(chosen)
    if any(find_known(own_codes(held, owner_key()), own_codes(part, owner_key())).any() for held in _parts(source)):
        raise SfumatoError(
            f"{given} holds records of the private source, which cannot be canaries",
            "give a public source that shares no record with it, or leave it out to use synthetic canaries",
        )
    images = part.take(slice(None))
    labels = _labels(generator, count, source)
    found = _with_zoomed(source, lambda side: images if side == source.size else _enlarge(images, side), labels)
    return replace(found, spec=spec)


def _parts(source: Source) -> list[Part]:
    return [part for part in (source.train, source.test, source.held_out) if part is not None]


def _with_zoomed(source: Source, at: Callable[[int], np.ndarray], labels: np.ndarray) -> Canaries:
    side = None if source.zoomed is None else source.zoomed.shape[1]
    zoomed = None if side is None else Records(images=at(side), labels=labels)
    return Canaries(records=Records(images=at(source.size), labels=labels), zoomed=zoomed)


def _labels(generator: np.random.Generator, count: int, source: Source) -> np.ndarray:
    """Random labels, int64 (count,) or (count, L)."""
    if source.next_words:
        source.require_classes("a canary")
    if source.multilabel:
        return generator.integers(2, size=(count, len(source.classes)))
    return generator.integers(len(source.classes), size=count)


def _enlarge(images: np.ndarray, side: int) -> np.ndarray:
    return prepare_array(images, size=side, channels=images.shape[3])
