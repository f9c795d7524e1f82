"""Public examples of a run, for the model's normalisation."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sfumato._checks import SfumatoError
from sfumato.data import Part, Preparation, Source, find_known, open_source, own_codes
from sfumato.experiment.settings import Settings
from sfumato.randomness import owner_key
from sfumato.runs.owner import uses

DRAWN_BY = 0
"""The public seed for drawing among a source's training examples; the draw only depends on their number."""


@dataclass(frozen=True, kw_only=True)
class PublicExamples:
    """Examples from a public source.

    Args:
        images: uint8 (M, H, W, C).
        codes: uint8 (M, 32), keyed digests that identify records for the owner.
        filtered: whether the source was chosen by looking at private data.
        source: the public source.
    """

    images: np.ndarray = field(repr=False)
    codes: np.ndarray = field(repr=False)
    filtered: bool
    source: Source

    @property
    def digest(self) -> str:
        """SHA-256 of the images."""
        return hashlib.sha256(np.ascontiguousarray(self.images).data).hexdigest()

    def inputs(self, transform: Preparation) -> Tensor:
        """The model's inputs, (M, C, H, W)."""
        return transform(torch.from_numpy(self.images))

    def among(self, part: Part) -> np.ndarray:
        """Whether each record of a part is among these examples, bool (N,). For the owner only."""
        return find_known(own_codes(part, owner_key()), self.codes)


@dataclass(frozen=True, kw_only=True)
class PublicNormalisation:
    """Public examples for the model's normalisation; training records that equal one of them are excluded.

    Args:
        public: the examples.
        excluded: whether each training record is among them, bool (N,), and so excluded from training; None for none.
    """

    public: PublicExamples
    excluded: np.ndarray | None = field(repr=False)

    @classmethod
    def read(cls, settings: Settings, source: Source) -> PublicNormalisation | None:
        """The examples of the settings; None without any."""
        chosen = public_examples(settings, source)
        if chosen is None:
            return None
        excluded = None if source.public or source.cache is not None else chosen.among(source.train)
        return cls(public=chosen, excluded=excluded if excluded is not None and excluded.any() else None)

    def exclude_records(self, source: Source) -> Source:
        """Excludes the training records that are among them.

        **Guarantee.** Each record is judged by itself, so adding or removing one changes nothing for the others, as
        long as excluded records keep their places where places matter (`PrivateTrainingSteps`). The declared number of
        examples, and so the guarantee, stays the same. Which records are excluded, and how many, is for the owner only.
        """
        if self.excluded is None:
            return source
        zoomed = None if source.zoomed is None else source.zoomed.select(~self.excluded)
        return replace(source, train=source.train.select(~self.excluded), zoomed=zoomed)

    @property
    def pin(self) -> dict[str, Any]:
        """The digest of the examples, which must be the same when the run is resumed."""
        return {"public examples": {"hash": self.public.digest}}

    @property
    def circumstances(self) -> dict[str, Any]:
        """Their number, and whether they were chosen by looking at private data."""
        return {"public_examples": len(self.public.images), "public_filtered": self.public.filtered}

    def notes(self, source: Source) -> Iterator[str]:
        """Messages about private records among them."""
        if (note := uses.declared_public_note(self.public.source)) is not None:
            yield note
        if self.excluded is not None:
            yield (
                f"note: {int(self.excluded.sum())} of your private training records are among the public examples and "
                "are left out (for you only: no statement says so)"
            )
        if tested := int(self.public.among(source.test).sum()):
            yield (
                f"note: {tested} of your test images are among the public examples for the model's normalisation, so "
                "its accuracy is not measured only on unseen images (for you only: no statement says so)"
            )


def public_examples(settings: Settings, source: Source) -> PublicExamples | None:
    """The public examples of the settings, read like the private source's images; None without any.

    Errors: `SfumatoError` for a source that cannot be read, holds features, or too few examples.
    """
    if settings.norms.public_data is None:
        return None
    if source.cache is not None:
        raise SfumatoError(
            f"normalisation {settings.norms.normalisation} is for networks on images, but the source holds features",
            "leave it out",
        )
    count = settings.norms.public_examples
    like = {"size": source.size, "channels": source.channels, "open_set": True}  # labels are not used
    try:
        opened = open_source(settings.norms.public_data, owner_key=owner_key(), public=True, **like)
    except SfumatoError as error:
        if "holds texts" not in error.problem:
            raise
        raise SfumatoError(
            f"public_data {settings.norms.public_data} holds texts, but {count} images are needed",
            "give a source of images",
        ) from None
    if opened.cache is not None or len(opened.train) < count:
        held = "holds features" if opened.cache is not None else f"has {len(opened.train)} training examples"
        raise SfumatoError(
            f"public_data {settings.norms.public_data} {held}, but {count} images are needed",
            "give another source, or fewer `public_examples`",
        )
    part = draw(opened.train, count)
    return PublicExamples(
        images=part.take(slice(None)), codes=own_codes(part, owner_key()), filtered=opened.filtered, source=opened
    )


def draw(part: Part, count: int) -> Part:
    """At most so many records of a public part, drawn with the public seed `DRAWN_BY`, in their order."""
    chosen = np.zeros(len(part), bool)
    chosen[np.random.default_rng(DRAWN_BY).permutation(len(part))[:count]] = True
    return part.select(chosen)
