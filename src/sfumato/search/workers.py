"""The data of a sweep, and running its trials in this process or in several. Each process reads the data once.

A search holds the records out that its runs are scored on.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

import numpy as np

from sfumato import _devices
from sfumato._checks import SfumatoError
from sfumato.data import Part, Source, SourceSpec, find_known, hold_out, own_codes
from sfumato.experiment import users
from sfumato.observers.progress import NoProgress, Progress, open_with_progress
from sfumato.privacy import Search
from sfumato.privacy.plan import default_delta
from sfumato.privacy.statements.display import ceiling
from sfumato.randomness import owner_key
from sfumato.report import figure_of
from sfumato.runs.directory import RunDirectory
from sfumato.runs.run import Run
from sfumato.search.trials import Trials
from sfumato.training.run import PublicRun
from sfumato.training.trial import Observers, SharedData, Trial


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


def read(trial: Trial, scoring: Scoring | None, progress: Progress | None = None) -> SweepData:
    """Read the source of a trial. For a search, its test part is replaced by the records to score on."""
    source = trial.experiment.select_records(open_with_progress(trial.spec, progress or NoProgress()))
    if scoring is None:
        return SweepData(source=source)
    by_person = getattr(trial.experiment, "unit", "user") == "user"  # embeddings always protect people
    delta, request = default_delta((source.users if by_person else None) or source.examples), trial.spec.record()
    if scoring.score_on is None:
        rest, validation = hold_out(source, owner_key(), scoring.validation)
        request = {"source": request, "validation": scoring.validation}
        return SweepData(source=replace(rest, test=validation), request=request, delta=delta)
    refuse_embeddings(trial, f"`score_on={scoring.score_on}`")
    source = replace(source, test=_public_test_part(scoring.score_on, source, trial.spec.spec))
    if trial.experiment.unit == "user":
        users.refuse_shared(source)
    return SweepData(source=source, request={"source": request, "scored on": scoring.score_on}, delta=delta)


def refuse_embeddings(trial: Trial, option: str) -> None:
    """Refuse an embedding training in a search that counts correct answers."""
    if trial.embeds:
        raise SfumatoError(
            f"{option} counts correct answers, which embeddings don't give", "use an open search: public or uncovered"
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
    known = not source.public and bool(find_known(_codes_of(source), _codes_of(other)).any())
    for wrong, problem, remedy in (
        (not other.public, "is private", "name a published collection, or features that were computed with --public"),
        (
            (other.classes, other.multilabel) != (source.classes, source.multilabel),
            f"has the classes {', '.join(other.classes)}, but the data have {', '.join(source.classes)}",
            "score on the same classes in the same order",
        ),
        (
            other.filtered and not source.filtered,
            "was filtered by looking at private data, so it is not public",
            "score on the unfiltered set",
        ),
        (
            known,
            f"holds records of {named}, which are private",
            "score on other data, or leave these records out of the private ones (sfumato dedup)",
        ),
    ):
        if wrong:
            raise SfumatoError(f"`score_on={score_on}` {problem}", f"{remedy}; or leave it out to hold out a part")
    return other.test


def _features_of(source: Source) -> tuple[int, str | None] | None:
    """The width of a cache's features and the digest of the network behind them; None for images."""
    return None if source.cache is None else (source.cache.contents.width, source.cache.contents.digest)


def _codes_of(source: Source) -> np.ndarray:
    """The codes of all records of both parts, uint8 (N, 32)."""
    return np.concatenate([own_codes(part, owner_key()) for part in (source.train, source.test)])


def refuse_other_data(first: Source, before: str, other: Source, named: str) -> None:
    """Refuse a source that does not hold the data of the first one, such as another cache of their features."""
    declared, of_first = ((source.public, source.filtered) for source in (other, first))
    same = (other.stored_digest, other.classes) == (first.stored_digest, first.classes)
    if declared != of_first or not same or other.train.labels.tolist() != first.train.labels.tolist():
        raise SfumatoError(
            f"source {named} holds other data than {before}, or is declared differently",
            "compare the same images, or features of the same images, all public or all private",
        )


CHOOSES_RECORDS = ("unit", "per_user", "per_step")
"""The fields of an experiment that decide which records are trained on."""

_WORKER: Worker | SfumatoError | None = None
"""In a process that was started for a sweep: its worker, or the error that prevented it."""


@dataclass(kw_only=True)
class Worker:
    """Trains the runs of a sweep on their data.

    Args:
        trial: the unchanged trial.
        scoring: the records that the runs of a search are scored on; None for repeated training.
        search: the search that the runs' statements name, if no guarantee covers it.
        fingerprint: the fingerprint of the trial's data, which every process must find.
    """

    trial: Trial
    scoring: Scoring | None
    search: Search | None = None
    fingerprint: str | None = None
    _read: dict[str, SweepData] = field(default_factory=dict, init=False)

    def data_of(self, trial: Trial, progress: Progress | None = None) -> SweepData:
        """The data of a trial. Those of a search have to be the same for all trials, maybe in another form."""
        decisive = [getattr(trial.experiment, name, None) for name in CHOOSES_RECORDS]
        place = repr((trial.spec.record(), decisive))
        if place not in self._read:
            data = self._read[place] = read(trial, self.scoring, progress)
            if self.scoring is not None and trial.spec.spec != (before := self.trial.spec.spec):
                refuse_other_data(self.data_of(self.trial).source, before, data.source, trial.spec.spec)
        return replace(self._read[place], search=self.search)

    def train(
        self, trial: Trial, place: Path, progress: Progress | None = None, observers: Observers | None = None
    ) -> Run | PublicRun:
        """Train, resume or read one run."""
        return trial.train(place, progress or NoProgress(), shared=self.data_of(trial), observers=observers)

    def in_processes(
        self, trials: Mapping[str, Trial], place: Path, processes: int
    ) -> Iterator[tuple[str, Run | PublicRun]]:
        """Train every unfinished run in other processes. Yields each with its name as it ends."""
        self._read.clear()  # each process reads its own data
        context = multiprocessing.get_context("spawn")
        initialisation: dict[str, Any] = {"initializer": _begin, "initargs": (self, context.Value("i", 0))}
        with ProcessPoolExecutor(processes, mp_context=context, **initialisation) as pool:
            jobs = {pool.submit(_train, trial, place / name): name for name, trial in trials.items()}
            try:
                for job in as_completed(jobs):
                    yield jobs[job], job.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise


def train_all(
    trials: Trials,
    changes: Mapping[str, Mapping[str, Any]],
    listed: Mapping[str, Trial],
    place: Path,
    worker: Worker,
    processes: int,
    observers: Observers | None,
    progress: Progress,
) -> list[Run | PublicRun]:
    """Train, resume or read every run, and report each result. A search shows the progress of all runs together."""
    total, of_run = (progress, NoProgress()) if trials.is_search else (NoProgress(), progress)
    runs: dict[str, Run | PublicRun] = {}
    total.begin("searching", len(listed))
    if processes == 1:
        ended = ((name, worker.train(trial, place / name, of_run, observers)) for name, trial in listed.items())
    else:
        ended = worker.in_processes(listed, place, processes)
    for name, run in ended:
        runs[name], figure = run, figure_of(run.figures)
        note = " (trained before)" if run.seconds == 0 and trials.plot_file is None else ""
        progress.report(f"{trials.label(name, changes[name])}: {figure} {run.figures[figure]:.2%}{note}")
        total.advance(len(runs), f"best {max(run.figures[figure] for run in runs.values()):.1%}")
    return [runs[name] for name in listed]


def row_of(run: Run | PublicRun) -> dict[str, Any]:
    """A finished run as plain data, for a table."""
    figure = figure_of(run.figures)
    measured = ("recall", "far") if figure == "recall" else ("accuracy", "top5", "loss")
    row: dict[str, Any] = {name: run.figures[name] for name in measured if name in run.figures}
    if isinstance(run, Run):
        last, plan = f"{figure}_of_last_weights", run.statement.plan
        row |= {
            last: RunDirectory(run.directory).rows()[-1].get(last),
            "epsilon": ceiling(run.statement.epsilon, 6),
            "noise_multiplier": plan.noise_multiplier,
            "steps": plan.steps,
            "batch_size": plan.expected_batch_size,
        }
    return row | {"run": str(run.directory)}


def _begin(worker: Worker, started: Synchronized[int]) -> None:
    """Read the data, once per process. The first run raises any error from here.

    Args:
        started: the number of started processes. Each process takes the next of several accelerators.
    """
    global _WORKER
    _end_with_parent()
    with started.get_lock():
        number, started.value = started.value, started.value + 1
    _devices.set_accelerator(number)
    try:
        if worker.data_of(worker.trial).source.fingerprint != worker.fingerprint:
            raise SfumatoError("the data have changed since the search began", "restore them, or start a new search")
        _WORKER = worker
    except SfumatoError as error:
        _WORKER = error


def _train(trial: Trial, place: Path) -> Run | PublicRun:
    """One run, in a process that `_begin` has prepared."""
    if not isinstance(_WORKER, Worker):
        raise _WORKER or RuntimeError("the process has not begun")
    return _WORKER.train(trial, place)


def _end_with_parent() -> None:
    """End this process when the sweep's main process is killed."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
