"""One training as it is asked for: what to train, on which data, and where to compute. A search makes many of one."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sfumato.data import Source, SourceSpec
from sfumato.experiment.as_recipe import request_of
from sfumato.observers.observer import Observer
from sfumato.observers.progress import Progress, read_source
from sfumato.privacy import Search
from sfumato.randomness import owner_key
from sfumato.runs.directory import RunDirectory
from sfumato.runs.run import read
from sfumato.training.job import PublicJob
from sfumato.training.loop import Outcome
from sfumato.training.preparation import resume
from sfumato.training.preparation.start import Machine, Start
from sfumato.training.run import execute, finished

EarlierSearch = Callable[[Source], Search | None]
"""The search, if any, that an experiment's settings came from, where it looked at these data and nothing covers it."""
Observers = Callable[[Any, RunDirectory], Sequence[Observer]]
"""The further observers of a run, by its job."""


@dataclass(frozen=True, kw_only=True)
class AnyTrial(ABC):
    """A training as it is asked for, of classifiers or embeddings, which can be repeated and varied.

    Args:
        experiment: what was chosen; the rest follows by rule.
        source: the data.
        device, threads: performance; they don't change the promise.
        options: what is wanted of the parts around the run, by name.
        notes: what else is reported when its run begins.
        earlier_search: the search that these choices came from, which then counts as well.
    """

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

    @property
    @abstractmethod
    def varied(self) -> tuple[str, ...]:
        """The fields of the experiment that a search may vary."""

    @abstractmethod
    def kept(self, source: Source) -> Source:
        """The source with as many records as are trained on."""

    @abstractmethod
    def units_of(self, source: Source) -> int:
        """How many units the promise is for: examples, or users."""

    @abstractmethod
    def decide(self, source: Source) -> Any:
        """What is decided for this source, with `settings`, `reasons`, and a `plan` where there is one."""

    @abstractmethod
    def prepared(self, decided: Any, source: Source, start: Start, **options: Any) -> Any:
        """The job of one run, by what was decided, with these parts around it."""

    @abstractmethod
    def check_trainable(self, decided: Any, source: Source) -> None:
        """Refuse what no run on this source could have; spends nothing."""

    @abstractmethod
    def refuse_at_once(self) -> None:
        """Refuse what its choices alone decide to be impossible, before any data are read."""

    @abstractmethod
    def refuse_figures(self) -> None:
        """Refuse figures that would cost their epsilon each time."""

    def decided(self, source: Source) -> Any:
        """The same for a search: a named tuple with a plan."""
        return self.decide(source)

    def remarks(self, job: Any, decided: Any) -> Iterable[str]:
        """What is to be said of a job before it begins, besides what was decided."""
        return ()

    @property
    def machine(self) -> Machine:
        """Where to compute."""
        return Machine(device=self.device, threads=self.threads)

    @property
    def request(self) -> dict[str, Any]:
        """What was asked for, for the record."""
        return request_of(self.spec, self.experiment, self.machine, self.options)

    def opened(self) -> Source:
        """The source, read."""
        return self.kept(self.spec.open(owner_key()))

    def searched(self, source: Source) -> Search | None:
        """The search that the choices came from, where it looked at these data and nothing covers it."""
        return self.earlier_search(source) if self.earlier_search else None

    def job(self, run: RunDirectory, progress: Progress) -> Any:
        """Everything up to the first step of a run in this directory."""
        if not run.exists:
            run.require_free()
        self.refuse_at_once()
        source = self.kept(read_source(self.spec, progress))
        decided = self.decide(source)
        search = None
        if (plan := getattr(decided, "plan", None)) is not None and (earlier := self.searched(source)) is not None:
            search = earlier + Search(runs=1, epsilon=plan.epsilon(), delta=plan.delta)
        start = Start.of(run, machine=self.machine, request=self.request, search=search)
        job = self.prepared(decided, source, start, **self.options)
        if not run.exists:
            for line in (*self.notes, *decided.reasons, *self.remarks(job, decided)):
                progress.report(line)
        return job

    def trained(
        self, directory: str | os.PathLike[str], progress: Progress, *, observers: Observers | None = None
    ) -> Any:
        """Its run: begun, resumed, or read where it is finished."""
        run = RunDirectory(directory)
        job = self.job(run, progress)
        if not run.finished:
            return execute(job, run, progress=progress, observers=observers(job, run) if observers else ())
        resume.compare(job, run, going_on=False)
        if isinstance(job, PublicJob):
            return finished(job, run, job.statement, Outcome(step=job.steps, weights={}, seconds=0.0))
        return read(run)
