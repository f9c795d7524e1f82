"""Trials: requested trainings, with their data and machine. A search derives many from one."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from sfumato.data import Source, SourceSpec
from sfumato.experiment.to_recipe import request_of
from sfumato.observers.observer import Observer
from sfumato.observers.progress import Progress, open_with_progress
from sfumato.privacy import Search
from sfumato.runs.directory import RunDirectory
from sfumato.runs.run import read
from sfumato.training.job import PublicJob
from sfumato.training.loop import Outcome
from sfumato.training.preparation import resume
from sfumato.training.preparation.start import Machine, Start
from sfumato.training.run import execute, result_of

EarlierSearch = Callable[[Source], Search | None]
"""Returns the search that an experiment's settings came from, if it used these data without a guarantee."""
Observers = Callable[[Any, RunDirectory], Sequence[Observer]]
"""Makes the additional observers of a job and its run."""


@dataclass(frozen=True, kw_only=True)
class SharedData:
    """The data that several runs share, read once.

    Args:
        source: the records to train on, with the records to score on as its test part.
        request: the request for each run's record; None for each trial's own.
        search: the search that the runs' statements name; None for the one that the trial's choices came from.
    """

    source: Source
    request: Mapping[str, Any] | None = None
    search: Search | None = None


@dataclass(frozen=True, kw_only=True)
class AnyTrial(ABC):
    """A requested training of a classifier or an embedding, which can be repeated and varied.

    Args:
        experiment: the choices; the rest are defaults.
        source: the data.
        device, threads: performance; they don't change the guarantee.
        options: the options of the run's parts, by name.
        notes: further messages, reported when its run begins.
        earlier_search: the search that these choices came from, whose cost is added.
    """

    fixed: ClassVar[tuple[str, ...]]
    """The fields of the experiment that are the same in all runs of a search."""

    experiment: Any
    source: Any
    device: str | None = None
    threads: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    earlier_search: EarlierSearch | None = None

    @property
    @abstractmethod
    def spec(self) -> SourceSpec:
        """The source with its declarations."""

    @abstractmethod
    def refuse_early(self) -> None:
        """Refuse choices that are impossible for any data, before data are read."""

    @abstractmethod
    def select_records(self, source: Source) -> Source:
        """The source, reduced to the records that are trained on."""

    @abstractmethod
    def decide(self, source: Source) -> Any:
        """The decisions for this source: `settings`, `reasons`, and `plan` if private."""

    @abstractmethod
    def check_trainable(self, decided: Any, source: Source) -> None:
        """Refuse decisions that are impossible for this source. Spends nothing."""

    @abstractmethod
    def prepare_job(self, decided: Any, source: Source, start: Start, **options: Any) -> Any:
        """The job of one run from these decisions, with these options of its parts."""

    def remarks(self, job: Any, decided: Any) -> Iterable[str]:
        """Further messages about a job before it begins."""
        return ()

    @property
    def searchable_fields(self) -> tuple[str, ...]:
        """The fields of the experiment that a search may vary."""
        return tuple(choice.name for choice in fields(self.experiment) if choice.name not in self.fixed)

    @property
    def machine(self) -> Machine:
        """Where to compute."""
        return Machine(device=self.device, threads=self.threads)

    @property
    def request(self) -> dict[str, Any]:
        """The request, for the run's record."""
        return request_of(self.spec, self.experiment, self.machine, self.options)

    def job(self, run: RunDirectory, progress: Progress, shared: SharedData | None = None) -> Any:
        """Prepares a run in this directory up to its first step. Reads the data if none are shared."""
        if not run.exists:
            run.require_free()
        if shared is None:
            self.refuse_early()
            shared = SharedData(source=self.select_records(open_with_progress(self.spec, progress)))
        source, search = shared.source, shared.search
        decided = self.decide(source)
        earlier = self.earlier_search(source) if self.earlier_search else None
        if (plan := getattr(decided, "plan", None)) is not None and earlier is not None:
            search = earlier + Search(runs=1, epsilon=plan.epsilon(), delta=plan.delta)
        request = self.request if shared.request is None else shared.request
        start = Start.for_run(run, machine=self.machine, request=request, search=search)
        job = self.prepare_job(decided, source, start, **self.options)
        if not run.exists:
            for line in (*self.notes, *decided.reasons, *self.remarks(job, decided)):
                progress.report(line)
        return job

    def train(
        self,
        directory: str | os.PathLike[str],
        progress: Progress,
        *,
        shared: SharedData | None = None,
        observers: Observers | None = None,
    ) -> Any:
        """Begins or resumes its run, or reads it if it is finished."""
        run = RunDirectory(directory)
        job = self.job(run, progress, shared)
        if not run.finished:
            return execute(job, run, progress=progress, observers=observers(job, run) if observers else ())
        resume.compare(job, run, resuming=False)
        if isinstance(job, PublicJob):
            return result_of(job, run, job.statement, Outcome(step=job.steps, weights={}, seconds=0.0), None)
        return read(run)
