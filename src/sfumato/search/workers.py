"""Running the trials of a sweep in this process or in several. Each process reads the data once."""

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

from sfumato import _devices
from sfumato._checks import SfumatoError
from sfumato.observers.progress import NoProgress, Progress
from sfumato.privacy import Search
from sfumato.privacy.statements.display import ceiling
from sfumato.report import figure_of
from sfumato.runs.directory import RunDirectory
from sfumato.runs.run import Run
from sfumato.search.held_out import Scoring, SweepData, read, refuse_other_data
from sfumato.search.trials import Trials
from sfumato.training.preparation.trial import AnyTrial, Observers
from sfumato.training.run import PublicRun

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

    trial: AnyTrial
    scoring: Scoring | None
    search: Search | None = None
    fingerprint: str | None = None
    _read: dict[str, SweepData] = field(default_factory=dict, init=False)

    def data_of(self, trial: AnyTrial, progress: Progress | None = None) -> SweepData:
        """The data of a trial. Those of a search have to be the same for all trials, maybe in another form."""
        decisive = [getattr(trial.experiment, name, None) for name in CHOOSES_RECORDS]
        place = repr((trial.spec.record(), decisive))
        if place not in self._read:
            data = self._read[place] = read(trial, self.scoring, progress)
            if self.scoring is not None and trial.spec.spec != (before := self.trial.spec.spec):
                refuse_other_data(self.data_of(self.trial).source, before, data.source, trial.spec.spec)
        return replace(self._read[place], search=self.search)

    def train(
        self, trial: AnyTrial, place: Path, progress: Progress | None = None, observers: Observers | None = None
    ) -> Run | PublicRun:
        """Train, resume or read one run."""
        return trial.train(place, progress or NoProgress(), shared=self.data_of(trial), observers=observers)

    def in_processes(
        self, trials: Mapping[str, AnyTrial], place: Path, processes: int
    ) -> Iterator[tuple[str, Run | PublicRun]]:
        """Train every unfinished run in other processes. Yields each with its name as it ends."""
        self._read.clear()  # each process reads its own data
        context = multiprocessing.get_context("spawn")
        known: dict[str, Any] = {"initializer": _begin, "initargs": (self, context.Value("i", 0))}
        with ProcessPoolExecutor(processes, mp_context=context, **known) as pool:
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
    listed: Mapping[str, AnyTrial],
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
        ended = ((name, worker.train(one, place / name, of_run, observers)) for name, one in listed.items())
    else:
        ended = worker.in_processes(listed, place, processes)
    for name, run in ended:
        runs[name], figure = run, figure_of(run.figures)
        known = " (trained before)" if run.seconds == 0 and trials.plot_file is None else ""
        progress.report(f"{trials.label(name, changes[name])}: {figure} {run.figures[figure]:.2%}{known}")
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


def _train(trial: AnyTrial, place: Path) -> Run | PublicRun:
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
