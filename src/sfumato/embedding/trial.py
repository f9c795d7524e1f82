"""One training of embeddings as it is asked for: what to train, on which data, and where to compute."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from torch import nn

from sfumato._checks import SfumatoError
from sfumato.data import Source, SourceSpec, by_user
from sfumato.embedding import canary_users, kept
from sfumato.embedding.choices import WITH_NOISE
from sfumato.embedding.experiment import Decided, EmbeddingExperiment
from sfumato.embedding.job import AnyJob, DpsgdJob, WhiteningJob
from sfumato.embedding.method import forecast
from sfumato.embedding.noiseless import Unpromised
from sfumato.embedding.prepare import check_scored, decide, prepare
from sfumato.experiment import users
from sfumato.experiment.as_recipe import request_of
from sfumato.observers.observer import Observer
from sfumato.observers.progress import Progress, read_source
from sfumato.privacy import Search
from sfumato.privacy.planning import remarks
from sfumato.randomness import owner_key
from sfumato.runs.directory import RunDirectory
from sfumato.runs.run import Run, read
from sfumato.training.job import PublicJob
from sfumato.training.loop import Outcome
from sfumato.training.parts import budgeted
from sfumato.training.preparation import resume
from sfumato.training.preparation.prepare import check_machine
from sfumato.training.preparation.start import Machine, Start
from sfumato.training.run import PublicRun, execute, finished


@dataclass(frozen=True, kw_only=True)
class EmbeddingTrial:
    """A training of embeddings as it is asked for, which `sfumato.search` repeats and varies like a `Trial`.

    Args:
        experiment: what was chosen; the rest follows by rule.
        source: with its declarations; the classes of its test part may be others.
        device, threads: performance; they don't change the promise.
        options: budget, audit and keep, as `embed` takes them, by name.
        notes: what else is reported when its run begins.
        earlier_search: the search that these choices came from, which then counts as well.
    """

    experiment: EmbeddingExperiment
    source: SourceSpec
    device: str | None = None
    threads: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    earlier_search: Callable[[Source], Search | None] | None = None

    @property
    def spec(self) -> SourceSpec:
        """The source; the test part may have classes of its own."""
        return replace(self.source, open_set=True)

    @property
    def machine(self) -> Machine:
        """Where to compute."""
        return Machine(device=self.device, threads=self.threads)

    @property
    def request(self) -> dict[str, Any]:
        """What was asked for, for the record."""
        return request_of(self.spec, self.experiment, self.machine, self.options)

    @property
    def varied(self) -> tuple[str, ...]:
        """The fields of the experiment that a search may vary: not what is measured, nor which records there are."""
        fixed = ("seed", "per_user", "start", "period", "noise", "far")
        return tuple(one.name for one in fields(EmbeddingExperiment) if one.name not in fixed)

    def opened(self) -> Source:
        """The source, read."""
        return self._of_users(self.spec.open(owner_key()))

    def _of_users(self, source: Source) -> Source:
        """With as many records of each user as are asked for. Refuses a source without classes."""
        source = users.kept(source, self.experiment.per_user)
        source.require_classes("a training of embeddings")
        return source

    def units_of(self, source: Source) -> int:
        """How many users the promise is for."""
        return source.users or source.examples

    def decided(self, source: Source) -> Decided:
        """Plan, settings and clients for this source. Refuses methods without a plan."""
        found, _ = decide(self.experiment, source)
        if not isinstance(found, Decided):
            raise SfumatoError(
                f"method {found.clients.method} has no plan, and a search compares what plans come to",
                f"take method {' or '.join(WITH_NOISE)}",
            )
        return found

    def prepared(self, decided: Decided, source: Source, start: Start, *, budget: str | None = None) -> AnyJob:
        """The job of one run of a search, by what was decided."""
        return prepare(source, decided, start=start, budget=budget, keep=0)

    def check_trainable(self, decided: Decided, source: Source) -> None:
        """Refuse what no run on this source could have; builds the model, and spends nothing."""
        try:
            check_scored(source)
        except SfumatoError as error:
            few = error.problem.replace("test part", "validation part")
            raise SfumatoError(few, "hold out a larger share of the people (`validation`)") from None
        self.prepared(decided, source, Start(machine=self.machine))

    def searched(self, source: Source) -> Search | None:
        """The search that the choices came from, where it looked at these data and nothing covers it."""
        return self.earlier_search(source) if self.earlier_search else None

    def refuse_figures(self) -> None:
        """Nothing is refused: a training of embeddings publishes no figures."""

    def refuse_at_once(self) -> None:
        """Refuse what its choices alone decide to be impossible, before any data are read."""
        method = self.experiment.chosen
        self.experiment.refuse_at_once(self.spec)
        budgeted.check(self.options.get("budget"), public=self.spec.is_public, seed=self.experiment.seed)
        canary_users.check(self.options.get("audit"), method)
        kept.check(self.options.get("keep"), method)
        check_machine(self.machine)

    def job(self, run: RunDirectory, progress: Progress) -> AnyJob:
        """Everything up to the first step of a run in this directory."""
        if not run.exists:
            run.require_free()
        self.refuse_at_once()
        source = self._of_users(read_source(self.spec, progress))
        decided, reasons = decide(self.experiment, source)
        search = None
        if isinstance(decided, Decided) and (earlier := self.searched(source)) is not None:
            search = earlier + Search(runs=1, epsilon=decided.plan.epsilon(), delta=decided.plan.delta)
        start = Start.of(run, machine=self.machine, request=self.request, search=search)
        job = prepare(source, decided, start=start, **self.options)
        if not run.exists:
            for line in (*self.notes, *reasons, *_notes(job, decided, source)):
                progress.report(line)
        return job

    def trained(
        self,
        directory: str | os.PathLike[str],
        progress: Progress,
        *,
        observers: Callable[[AnyJob, RunDirectory], Sequence[Observer]] | None = None,
    ) -> Run | PublicRun:
        """Its run: begun, resumed, or read where it is finished."""
        run = RunDirectory(directory)
        job = self.job(run, progress)
        if not run.finished:
            return execute(job, run, progress=progress, observers=observers(job, run) if observers else ())
        resume.compare(job, run, going_on=False)
        if isinstance(job, PublicJob):
            return finished(job, run, job.statement, Outcome(step=job.steps, weights={}, seconds=0.0))
        return read(run)


def job_of(
    experiment: EmbeddingExperiment,
    source: Source,
    *,
    model: nn.Module | None = None,
    start: Start | None = None,
    budget: str | None = None,
    audit: int | None = None,
    keep: int | None = None,
) -> tuple[AnyJob, list[str]]:
    """Everything up to the first round, and why what was left out is what it is."""
    decided, reasons = decide(experiment, source)
    job = prepare(source, decided, model=model, start=start, budget=budget, audit=audit, keep=keep)
    return job, [*reasons, *_notes(job, decided, source)]


def _notes(job: AnyJob, decided: Decided | Unpromised, source: Source) -> list[str]:
    """What is to be said of a plan for these users and this model."""
    reasons: list[str] = []
    if not isinstance(decided, Decided):
        return reasons
    plan = decided.plan
    held = len(by_user(source.train)[1])
    if not 0.8 * held <= (plan.users or 0) <= 1.25 * held:
        reasons.append(
            f"note: {plan.users} users are declared, and the data hold {held}; the promise holds as stated, but rounds "
            "have fewer or more users than planned, and are divided by the same number all the same"
        )
    if isinstance(job, WhiteningJob):
        return reasons
    vectors = plan.expected_batch_size if isinstance(job, DpsgdJob) else decided.clients.count
    parameters = sum(one.numel() for one in job.module.parameters() if one.requires_grad)
    if (weak := remarks.buried(plan, clients=vectors, parameters=parameters)) is not None:
        reasons.append(f"note: {weak}")
        found = forecast(plan.epsilon(), plan.delta, plan.units)
        reasons.append(f"note: {found.words}; where model, rounds and clients are left out, that decides")
    return reasons
