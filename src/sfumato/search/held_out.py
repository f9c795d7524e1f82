"""The data of a sweep: the whole source, or for a search the source without the records that the runs are scored on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sfumato._checks import SfumatoError
from sfumato.data import Part, Source, SourceSpec, find_known, hold_out, own_codes
from sfumato.experiment import users
from sfumato.observers.progress import NoProgress, Progress, open_with_progress
from sfumato.privacy.plan import default_delta
from sfumato.randomness import owner_key
from sfumato.search.trial import Trial
from sfumato.training.preparation.trial import AnyTrial, SharedData


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """The records that the runs of a search are scored on: never the test part, and never training records.

    Args:
        validation: the share of the training part that is held out for scoring.
        score_on: a public source whose test part is used instead.
    """

    validation: float = 0.1
    score_on: str | None = None


@dataclass(frozen=True, kw_only=True)
class SweepData(SharedData):
    """The data of a sweep.

    Args:
        delta: the delta by rule of a run on all records; None for that of the training part. A guarantee covers both
            parts.
    """

    delta: float | None = None


def read(trial: AnyTrial, scoring: Scoring | None, progress: Progress | None = None) -> SweepData:
    """Read the source of a trial. For a search, its test part is replaced by the records to score on."""
    source = trial.select_records(open_with_progress(trial.spec, progress or NoProgress()))
    if scoring is None:
        return SweepData(source=source)
    delta, request = default_delta(_units_of(trial, source)), trial.spec.record()
    if scoring.score_on is None:
        rest, validation = hold_out(source, owner_key(), scoring.validation)
        request = {"source": request, "validation": scoring.validation}
        return SweepData(source=replace(rest, test=validation), request=request, delta=delta)
    refuse_embeddings(trial, f"`score_on={scoring.score_on}`")
    source = replace(source, test=_public_test_part(scoring.score_on, source, trial.spec.spec))
    if trial.experiment.unit == "user":
        users.refuse_shared(source)
    return SweepData(source=source, request={"source": request, "scored on": scoring.score_on}, delta=delta)


def _units_of(trial: AnyTrial, source: Source) -> int:
    """The number of units that the guarantee covers. Trainings of embeddings always protect people."""
    by_person = getattr(trial.experiment, "unit", "user") == "user"
    return (source.users if by_person else None) or source.examples


def refuse_embeddings(trial: AnyTrial, what: str) -> None:
    """Refuse an embedding training in a search that counts correct answers."""
    if not isinstance(trial, Trial):
        raise SfumatoError(
            f"{what} counts correct answers, which embeddings don't give", "use an open search: public or uncovered"
        )


def _public_test_part(score_on: str, source: Source, named: str) -> Part:
    """The test part of a public source, checked to be suitable for scoring runs on this source."""
    declared: dict[str, Any] = dict(source.class_arguments)
    declared |= (
        {"size": source.size, "channels": source.channels} if source.tokens is None else source.tokens.declaration
    )
    cached = score_on.startswith("features:")
    other = None
    if cached == (source.cache is not None):
        other = SourceSpec(spec=score_on, **({} if cached else declared)).open(owner_key())
    if other is None or _features_of(other) != _features_of(source) or other.tokens != source.tokens:
        raise SfumatoError(
            f"`score_on={score_on}` holds other inputs than {named}",
            "score on images if the runs train on images, else on features of the same backbone",
        )
    if not other.public:
        raise SfumatoError(
            f"`score_on={score_on}` is private",
            "name a published collection, or features that were computed with --public; or leave `score_on` out to "
            "hold out a part",
        )
    if (other.classes, other.multilabel) != (source.classes, source.multilabel):
        raise SfumatoError(
            f"`score_on={score_on}` has the classes {', '.join(other.classes)}, but the data have "
            f"{', '.join(source.classes)}",
            "score on the same classes in the same order",
        )
    if other.filtered and not source.filtered:
        raise SfumatoError(
            f"`score_on={score_on}` was filtered by looking at private data, so it is not public",
            "score on the unfiltered set, or leave it out",
        )
    if not source.public and bool(find_known(_codes_of(source), _codes_of(other)).any()):
        raise SfumatoError(
            f"`score_on={score_on}` holds records of {named}, which are private",
            "score on other data, leave these records out of the private ones (sfumato dedup), or leave `score_on` out",
        )
    return other.test


def _features_of(source: Source) -> tuple[int, str | None] | None:
    """The width of a cache's features and the digest of the network behind them; None for images."""
    return None if source.cache is None else (source.cache.contents.width, source.cache.contents.digest)


def _codes_of(source: Source) -> np.ndarray:
    """The codes of all records of both parts, uint8 (N, 32)."""
    return np.concatenate([own_codes(part, owner_key()) for part in (source.train, source.test)])


def refuse_other_data(first: Source, before: str, other: Source, named: str) -> None:
    """Refuse a source that does not hold the data of the first one, such as another cache of their features."""
    if (other.public, other.filtered) != (first.public, first.filtered):
        raise SfumatoError(
            f"source {named} is {'public' if other.public else 'private'} and "
            f"{'' if other.filtered else 'not '}filtered, unlike {before}",
            "compare data with the same declarations",
        )
    same = (other.stored_digest, other.classes) == (first.stored_digest, first.classes)
    if not same or other.train.labels.tolist() != first.train.labels.tolist():
        raise SfumatoError(
            f"source {named} holds other data than {before}",
            "compare the same images, or features of the same images",
        )
