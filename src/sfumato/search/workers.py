"""Running a search in this process or in several. Each process reads the source once."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

from sfumato import _devices
from sfumato._checks import SfumatoError
from sfumato.observers.progress import Progress
from sfumato.report import figure_of
from sfumato.runs import directory as names
from sfumato.runs.directory import RunDirectory
from sfumato.search.search_context import SearchContext, SearchData, job_for, read, with_source
from sfumato.search.space import line_of
from sfumato.training import run as runs
from sfumato.training.preparation import resume

_WORKER: Worker | SfumatoError | None = None
"""In a process that was started for a search: its worker, or the error that prevented it."""


class Worker:
    """Trains the runs of a search on its data."""

    def __init__(self, shared: SearchContext, data: SearchData) -> None:
        self.shared, self.held = shared, data
        self._others: dict[str, SearchData] = {}

    def data_for(self, change: Mapping[str, Any]) -> SearchData:
        """The data of one run: the search's own, or the same in another form."""
        spec = change.get("source")
        if spec in (None, self.shared.trial.spec.spec):
            return self.held
        if spec not in self._others:
            self._others[spec] = with_source(self.shared, self.held, spec)
        return self._others[spec]

    def run_trial(self, change: Mapping[str, Any], place: Path) -> dict[str, Any]:
        """Train, resume or read one run. Returns its figures as plain data."""
        run = RunDirectory(place)
        job = job_for(self.shared, self.data_for(change), change, run)
        if run.finished:
            resume.compare(job, run, resuming=False)
        else:
            runs.execute(job, run)
        return figures(run)


def train_all(
    shared: SearchContext,
    changes: Sequence[Mapping[str, Any]],
    place: Path,
    *,
    first: int,
    processes: int,
    held: SearchData | None,
    progress: Progress,
) -> list[dict[str, Any]]:
    """Train every unfinished run and report each result. Returns the figures and the directory of each run.

    Args:
        first: the number of the first run's directory.
        held: as for `run_all`.
    """
    width = len(str(len(changes)))
    places = [place / f"{number:0{width}d}" for number in range(first, first + len(changes))]
    rows: list[dict[str, Any]] = [{} for _ in changes]
    progress.begin("searching", len(changes))
    for done, (number, found) in enumerate(run_all(shared, changes, places, processes=processes, held=held), 1):
        rows[number] = {**found, "run": str(places[number])}
        figure = figure_of(found)
        progress.report(f"{line_of(changes[number])}: {found[figure]:.2%}")
        progress.advance(done, f"best {max(row[figure] for row in rows if row):.1%}")
    return rows


def run_all(
    shared: SearchContext,
    changes: Sequence[Mapping[str, Any]],
    places: Sequence[Path],
    *,
    processes: int,
    held: SearchData | None = None,
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Train every unfinished run. Yields (its number, its figures) as each one ends.

    Args:
        held: the data, if this process has read them. Several processes read their own.
    """
    listed = list(enumerate(zip(changes, places, strict=True)))
    if processes == 1:
        worker = Worker(shared, held or read(shared))
        for number, (change, place) in listed:
            yield number, worker.run_trial(change, place)
        return
    context = multiprocessing.get_context("spawn")
    known: dict[str, Any] = {"initializer": _begin, "initargs": (shared, context.Value("i", 0))}
    with ProcessPoolExecutor(processes, mp_context=context, **known) as pool:
        jobs = {pool.submit(_trial, change, place): number for number, (change, place) in listed}
        try:
            for job in as_completed(jobs):
                yield jobs[job], job.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _begin(shared: SearchContext, started: Synchronized[int]) -> None:
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
        held = read(shared)
        if held.source.fingerprint != shared.fingerprint:
            raise SfumatoError("the data have changed since the search began", "restore them, or start a new search")
        _WORKER = Worker(shared, held)
    except SfumatoError as error:
        _WORKER = error


def _trial(change: Mapping[str, Any], place: Path) -> dict[str, Any]:
    """One run, in a process that `_begin` has prepared."""
    if not isinstance(_WORKER, Worker):
        raise _WORKER or RuntimeError("the process has not begun")
    return _WORKER.run_trial(change, place)


def _end_with_parent() -> None:
    """End this process when the search's main process is killed."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def figures(run: RunDirectory) -> dict[str, Any]:
    """The figures of a finished run for a table."""
    result = run.read_json(names.EVALUATION)
    statement = run.read_json(names.STATEMENT)
    last = run.rows()[-1]
    figure = figure_of(result)
    measured = ("recall", "far") if figure == "recall" else ("accuracy", "top5", "loss")
    return {
        **{name: result[name] for name in measured},
        f"{figure}_of_last_weights": last.get(f"{figure}_of_last_weights"),
        "epsilon": statement.get("planned", statement)["epsilon"],
        "noise_multiplier": statement["plan"]["noise_multiplier"],
        "steps": statement["plan"]["steps"],
        "batch_size": statement["plan"]["batch_size"],
    }
