"""The shared inputs of a search's runs: the trial that each run changes, and the data, read once per process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from sfumato import _devices
from sfumato._checks import SfumatoError, positive_integer
from sfumato.data import Part, Source, SourceSpec, find_known, hold_out, own_codes
from sfumato.experiment import users
from sfumato.observers.progress import Progress, default_progress
from sfumato.privacy import PrivacyPlan, Search
from sfumato.privacy.plan import default_delta
from sfumato.randomness import Choice, Space, owner_key
from sfumato.runs.directory import RunDirectory
from sfumato.runs.owner import budgets, sentences, uses
from sfumato.runs.owner.lines import DataIdentity
from sfumato.search.trial import refuse_embeddings
from sfumato.training.job import PrivateJob
from sfumato.training.preparation.prepare import check_machine, default_threads
from sfumato.training.preparation.start import Start
from sfumato.training.preparation.trial import AnyTrial


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
class SearchContext:
    """The shared inputs of all runs of a search, as plain data that is sent to every process.

    Args:
        trial: the unchanged trial.
        scoring: the records that the runs are scored on.
        search: the search that the runs' statements name, if no promise covers it.
        fingerprint: the fingerprint of the search's data. Every process must find the same data.
    """

    trial: AnyTrial
    scoring: Scoring
    search: Search | None = None
    fingerprint: str | None = None

    @classmethod
    def from_trial(cls, trial: AnyTrial, scoring: Scoring, processes: int) -> SearchContext:
        """The context of a search. If the number of threads is not given, the processes share the machine's threads."""
        positive_integer("processes", processes)
        trial.refuse_figures()
        threads = max(1, default_threads() // processes) if trial.threads is None else trial.threads
        return cls(trial=replace(trial, threads=threads, earlier_search=None), scoring=scoring)

    def trial_with(self, change: Mapping[str, Any]) -> AnyTrial:
        """The trial of one run, on the shared source."""
        known = {one.name for one in fields(self.trial.experiment)}
        own = {name: value for name, value in change.items() if name in known}
        return replace(self.trial, experiment=replace(self.trial.experiment, **own))


@dataclass(frozen=True, kw_only=True)
class SearchData:
    """The data of a search: the source to train on, the records to score on, and the number of units in both."""

    source: Source
    validation: Part
    request: dict[str, Any]
    units: int


def read(shared: SearchContext) -> SearchData:
    """Read the source and hold out the validation part."""
    spec, scoring = shared.trial.spec, shared.scoring
    source, request = shared.trial.open_source(), spec.record()
    units = shared.trial.units_of(source)
    if scoring.score_on is None:
        rest, validation = hold_out(source, owner_key(), scoring.validation)
        request = {"source": request, "validation": scoring.validation}
        return SearchData(source=rest, validation=validation, request=request, units=units)
    refuse_embeddings(shared.trial, f"`score_on={scoring.score_on}`")
    request = {"source": request, "scored on": scoring.score_on}
    validation = _public_test_part(scoring.score_on, source, spec.spec)
    if shared.trial.experiment.unit == "user":
        users.refuse_shared(replace(source, test=validation))
    return SearchData(source=source, validation=validation, request=request, units=units)


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


def with_source(shared: SearchContext, held: SearchData, spec: str) -> SearchData:
    """The same data from another source, such as another cache of their features. Refuses other data."""
    before = shared.trial.spec
    read_anew = read(replace(shared, trial=replace(shared.trial, source=replace(before, spec=spec))))
    other, source = read_anew.source, held.source
    if (other.public, other.filtered) != (source.public, source.filtered):
        raise SfumatoError(
            f"source {spec} is {'public' if other.public else 'private'} and "
            f"{'' if other.filtered else 'not '}filtered, unlike {before.spec}",
            "compare data with the same declarations",
        )
    same = (other.stored_digest, other.classes) == (source.stored_digest, source.classes)
    if not same or other.train.labels.tolist() != source.train.labels.tolist():
        raise SfumatoError(
            f"source {spec} holds other data than {before.spec}",
            "compare the same images, or features of the same images",
        )
    return read_anew


def decide_run(shared: SearchContext, held: SearchData, change: Mapping[str, Any]) -> Any:
    """The `plan` and `settings` of one run."""
    trial = shared.trial_with(change)
    experiment = trial.experiment
    if experiment.delta is None:  # the delta of a run on all records, since the promise covers both parts
        experiment = replace(experiment, delta=default_delta(held.units))
    return replace(trial, experiment=experiment).decide_private(held.source)


def job_for(shared: SearchContext, held: SearchData, change: Mapping[str, Any], run: RunDirectory) -> PrivateJob:
    """The job of one run of the search, to start or to resume."""
    start = Start.for_run(run, machine=shared.trial.machine, request=held.request, search=shared.search)
    source, budget = replace(held.source, test=held.validation), shared.trial.options.get("budget")
    return shared.trial_with(change).prepare_job(decide_run(shared, held, change), source, start, budget=budget, keep=0)


def check_changes(shared: SearchContext, changes: Iterable[Mapping[str, Any]]) -> None:
    """Refuse runs with impossible options before any data are read."""
    for change in changes:
        one = shared.trial_with(change)
        if "source" in change:
            one = replace(one, source=replace(shared.trial.spec, spec=change["source"]))
        one.refuse_early()


def probe_changes(space: Space) -> Iterator[dict[str, Any]]:
    """Each value with the first values of all other fields; for a range, both ends."""
    first = {name: rule.values[0] if isinstance(rule, Choice) else rule.low for name, rule in space.items()}
    for name, rule in space.items():
        for value in rule.values if isinstance(rule, Choice) else (rule.low, rule.high):
            yield {**first, name: value}


def refuse_over_budget(shared: SearchContext, plans: Sequence[PrivacyPlan], record: Path) -> None:
    """Refuse runs that together exceed their budget, before the first of them. A search with a record has begun, and
    its reservations already count."""
    if (name := shared.trial.options.get("budget")) is not None and not record.exists():
        budgets.refuse_seeded(name, shared.trial.experiment.seed)
        budgets.refuse_over_budget(name, plans)


def report_overlaps(shared: SearchContext, source: Source, progress: Progress | None) -> None:
    """Report, before anything is spent, which records were used by runs on other data sets."""
    if not source.public:
        for note in sentences.overlap_notes(
            uses.earlier_uses(DataIdentity.from_source(source)), shared.trial.options.get("budget")
        ):
            default_progress(progress).report(note)


def check_values(shared: SearchContext, held: SearchData, space: Space) -> None:
    """Refuse values that no run can be trained with, before anything is spent."""
    check_trial(shared.trial)
    for change in probe_changes(space):
        check_trainable(shared, held, change, decide_run(shared, held, change))


def check_trainable(shared: SearchContext, held: SearchData, change: Mapping[str, Any], decided: Any) -> None:
    """Refuse options with which no run on these data can be trained. Spends nothing."""
    shared.trial_with(change).check_trainable(decided, replace(held.source, test=held.validation))


def check_trial(trial: AnyTrial) -> None:
    """Refuse an unsuitable machine, before anything is spent."""
    check_machine(replace(trial.machine, device=trial.device or _devices.select(None)))
