"""Requested trainings: from Python (`train`, `embed`), and as trials, which a search repeats and varies."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from inspect import signature
from typing import Any

from torch import nn

from sfumato._checks import SfumatoError
from sfumato.averaging import EMA
from sfumato.data import Source, SourceSpec
from sfumato.experiment import users
from sfumato.experiment.clients import EmbeddingExperiment, PublicDecision
from sfumato.experiment.drift import second_group
from sfumato.experiment.experiment import Decision, Experiment, forecast
from sfumato.experiment.from_keywords import experiment_of, from_choices, refuse_budget, refuse_others, settings_of
from sfumato.experiment.settings import OWN_MODEL, Settings, refuse_noise
from sfumato.experiment.to_recipe import request_of
from sfumato.observers.observer import Observer
from sfumato.observers.progress import Progress, default_progress, open_with_progress
from sfumato.privacy import PrivacyPlan, Search
from sfumato.randomness import RunKey, owner_key
from sfumato.runs.directory import Heading, RunDirectory
from sfumato.runs.owner.store import refuse_trained_on
from sfumato.runs.run import Run, read
from sfumato.training.job import PrivateJob, PublicJob
from sfumato.training.loop import Outcome
from sfumato.training.preparation import clients, resume
from sfumato.training.preparation.building import build, pretraining_digests
from sfumato.training.preparation.prepare import check_machine, own_threads, prepare
from sfumato.training.preparation.sources import open_data
from sfumato.training.preparation.start import OPTIONS, Machine, RunOptions, Start, split
from sfumato.training.run import PublicRun, execute, execute_in_workers, result_of
from sfumato.training.weights import check_choices

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
class Trial:
    """A requested training of a classifier or an embedding, as plain data that can be sent to other processes.

    >>> Trial(experiment=Experiment(epsilon=3.0), source="digits").spec.record()
    {'spec': 'digits', 'zoom': 1.0}

    Args:
        experiment: the chosen options. The others follow by rule. Its kind decides what is trained.
        source: the source's name, a `SourceSpec` with declarations, or data from Python (`open_source`).
        device, threads, micro_batch, precision: performance settings, which don't affect the guarantee.
        options: fields of `RunOptions`, by name.
        notes: further notes to report when the run starts.
        earlier_search: the search that chose these options, whose cost then counts too.
    """

    experiment: Experiment | EmbeddingExperiment
    source: Any
    device: str | None = None
    threads: int | None = None
    micro_batch: int | None = None
    precision: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    earlier_search: EarlierSearch | None = None

    def __post_init__(self) -> None:
        refuse_others(RunOptions, self.options)

    @property
    def embeds(self) -> bool:
        """Whether an embedding is trained, not a classifier."""
        return isinstance(self.experiment, EmbeddingExperiment)

    @property
    def spec(self) -> SourceSpec:
        """The source with its declarations. The test part of an embedding's source may have other classes."""
        if isinstance(self.source, SourceSpec):
            return replace(self.source, open_set=True) if self.embeds else self.source
        return SourceSpec(spec=self.source, **self._declared)

    @property
    def _declared(self) -> dict[str, Any]:
        """What the experiment declares of a source."""
        if isinstance(self.experiment, EmbeddingExperiment):
            return {"open_set": True}
        return {"zoom": self.experiment.zoom or 1.0}

    @property
    def machine(self) -> Machine:
        """Where to compute."""
        return Machine(**{one.name: getattr(self, one.name) for one in fields(Machine)})

    def refuse_early(self) -> None:
        """Refuse options that are impossible for any data, or for this source as declared."""
        check_machine(self.machine)
        self.experiment.check_source(self.spec)
        RunOptions(**self.options).check(public=self.spec.is_public, seed=self.experiment.seed)
        if isinstance(self.experiment, EmbeddingExperiment):
            clients.check(self.options, self.experiment.chosen)

    def read(self, progress: Progress) -> SharedData:
        """The records to train on. Refuses impossible options before it reads them."""
        if isinstance(self.source, (str, SourceSpec)):
            self.refuse_early()
            return SharedData(source=self.experiment.select_records(open_with_progress(self.spec, progress)))
        check_machine(self.machine)
        return SharedData(source=self.experiment.select_records(open_data(self.source, **self._declared)), request={})

    def decide(self, source: Source) -> Any:
        """The decisions for this source."""
        return self.experiment.decide(source)

    def prepare_job(self, decided: Any, source: Source, start: Start, own: nn.Module | None = None) -> Any:
        """The job of one run from these decisions."""
        if isinstance(decided, Decision):
            return prepare(own, source, decided.plan, decided.settings, start, **self.options)
        return clients.prepare(source, decided, model=own, start=start, **self.options)

    def check_trainable(self, decided: Any, source: Source) -> None:
        """Refuse decisions with which no run on this source can be trained. Builds the model, and spends nothing."""
        if not self.embeds:
            plan, settings = decided.plan, decided.settings
            source.images_for(settings.views)
            second_group(source, plan)
            refuse_trained_on(source, pretraining_digests(source, settings))
            check_choices(build(None, source, settings, RunKey.from_seed(0)), settings, steps=plan.steps)
            return
        try:
            clients.check_scored(source)
        except SfumatoError as error:
            few = error.problem.replace("test part", "validation part")
            raise SfumatoError(few, "hold out a larger share of the people (`validation`)") from None
        clients.prepare(source, decided, start=Start(machine=self.machine), keep=0)

    def job(
        self,
        run: RunDirectory,
        progress: Progress,
        shared: SharedData | None = None,
        own: nn.Module | None = None,
    ) -> Any:
        """Prepares a run in this directory up to its first step. Reads the data if none are shared.

        Args:
            own: the user's own module, of which a copy is trained.
        """
        if not run.exists:
            run.require_free()
        shared = shared or self.read(progress)
        source, search = shared.source, shared.search
        decided = self.decide(source)
        earlier = self.earlier_search(source) if self.earlier_search else None
        if earlier is not None and not isinstance(decided, PublicDecision):
            search = earlier + Search(runs=1, epsilon=decided.plan.epsilon(), delta=decided.plan.delta)
        request = shared.request
        if request is None:
            request = request_of(self.spec, self.experiment, self.machine, self.options)
        start = Start.for_run(run, machine=self.machine, request=request, search=search)
        job = self.prepare_job(decided, source, start, own)
        if not run.exists:
            for line in (*self.notes, *decided.reasons, *(clients.notes_of(job) if self.embeds else ())):
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


@own_threads()
def train(
    model: str | nn.Module | None,
    source: Any,
    plan: PrivacyPlan | None = None,
    *,
    directory: str | os.PathLike[str],
    settings: Settings | None = None,
    averaging: EMA | None = EMA(),  # noqa: B008 - frozen
    title: str | None = None,
    progress: Progress | None = None,
    observers: Sequence[Observer] = (),
    copy: bool = False,
    **choices: Any,
) -> Run:
    """Train privately; an unfinished run in `directory` is resumed. Processes of torchrun take the steps together.

    Args:
        model: a name (see `sfumato.models`), your own module (a copy is trained), or None for the default for this
            data.
        source: a spelling such as "folder:pictures", an opened `Source`, or data from Python: arrays (images, labels),
            a map-style `Dataset`, a Hugging Face `Dataset` or `DatasetDict`, a DataFrame (see `open_source`).
        plan: everything that determines epsilon; its population must be the source's number of examples. Without one,
            the plan is made from `choices` with the defaults of the command line: see `Experiment`.
        directory, settings: the run directory; the settings of model and training.
        averaging: the weights' moving average, or None for the last weights; with aggregate="uta", which releases the
            mean of the last weights, leave it out.
        title: the title of the run's report, also of the public one; by default source and model.
        progress: where to report progress; None for a bar in a notebook, and no reports elsewhere.
        observers: additional observers, which may end the run (`sfumato.Stop`).
        copy: resume the run although another copy of it went on, such as one before a backup was restored; the steps
            that the other copy may have taken are counted as spent (`open_run`).
        choices: fields of `Settings` in place of `settings`; without a plan, of `Experiment`; and

            device, threads, micro_batch, precision: performance; they don't change the guarantee.

            keep: number of intermediate weights to save for `sfumato.aggregate` and intervals; None for the default, 0
            for none.

            report_epsilon: publish accuracy and recall on the private test split, from noisy counts, at this epsilon
            for each of its records or users (`NoisyTable`); see `run.published`.

            budget: name of a budget (`set_budget`) in which the whole plan is reserved before step 0.

    **Guarantee.** The released model has the plan's (epsilon, delta) for the plan's unit and adjacency, with the
    exceptions that `run.statement.not_covered` lists. See `PrivateStep` and `PrivacyPlan`.

    Errors: `SfumatoError` before any budget is spent.
    """
    own_names = {*signature(train).parameters, *(one.name for one in fields(Machine)), *OPTIONS} - {"choices"}
    refuse_others(Experiment, choices, own_names)
    heading, progress = Heading(title=title), default_progress(progress)
    own, name = (model, OWN_MODEL) if isinstance(model, nn.Module) else (None, model)
    options, choices = split(choices)
    machine = Machine(**{one.name: choices.pop(one.name, None) for one in fields(Machine)})
    run = RunDirectory(directory)
    if plan is None:
        experiment = experiment_of(settings, name, averaging, choices)
        trial = Trial(experiment=experiment, source=source, options=vars(options), **vars(machine))
        shared = trial.read(progress)

        def job() -> PrivateJob:
            made = trial.job(run, progress, shared, own)
            if not run.exists and (expected := forecast(made.plan, made.settings, made.source)) is not None:
                progress.report(f"expected: {expected}")
            return made

    else:
        refuse_budget(choices)
        check_machine(machine)
        opened, request = _opened_for_plan(source, plan, settings_of(settings, name, averaging, choices), options)
        decided = settings_of(settings, name, averaging, choices, opened)

        def job() -> PrivateJob:
            start = Start.for_run(run, machine=machine, request=request)
            return prepare(own, opened, plan, decided, start, **vars(options))

    return execute_in_workers(job, run, heading=heading, progress=progress, observers=observers, copy=copy)


def _opened_for_plan(
    source: Any, plan: PrivacyPlan, settings: Settings, options: RunOptions
) -> tuple[Source, dict[str, Any]]:
    """The records that a given plan is for, and the request if the source was given by its spelling."""
    request = dict[str, Any]()
    if not isinstance(source, Source):
        examples, people = users.declared_numbers(plan)
        declared: dict[str, Any] = {"examples": examples, "users": people, "zoom": settings.augmentation.zoom}
        if isinstance(source, str):
            spec = SourceSpec(spec=source, **declared)
            settings.check_steps(plan.steps)
            settings.check_source(spec, settings.model)
            refuse_noise(settings.noise, plan.mechanism, plan.clipping)
            options.check(public=spec.is_public)
            source, request = spec.open(owner_key()), {"source": spec.record()}
        source = open_data(source, **declared)
    return users.cap_for_plan(source, plan), request


@own_threads()
def embed(
    source: Any,
    *,
    directory: str | os.PathLike[str],
    model: str | nn.Module | None = None,
    budget: str | None = None,
    keep: int | None = None,
    device: str | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
    observers: Sequence[Observer] = (),
    copy: bool = False,
    **choices: Any,
) -> Run | PublicRun:
    """Train an image embedding privately, with a guarantee for each user; an unfinished run in `directory` is resumed.

    Args:
        source: a spelling such as "npz:faces.npz", an opened `Source`, or data from Python (`open_source`). It must
            assign each record to a user.
        directory: the run directory.
        model: a name, a module (images (N, C, H, W) to embeddings (N, D); it is copied), or None for the default.
        budget: the name of a budget (`sfumato.set_budget`) in which to reserve the whole plan before the first round.
        keep: the number of weights of single rounds that are kept for `sfumato.aggregate`; None for the default, 0 for
            none.
        device, threads: performance settings, which don't affect the guarantee.
        progress: where to report progress.
        observers: further observers of the run.
        copy: as for `sfumato.train`.
        choices: fields of `EmbeddingExperiment`. Those that are left out follow its rules. With `method="central"`,
            "fedemb-noiseless" or "fedavg-noiseless" the training is without privacy, on public data alone. With
            "untrained", the rule's choice for few people, nothing is trained and no private data are used.

    **Guarantee.** The released backbone has the plan's (epsilon, delta) for each single user, with all of their records
    that are kept, with the exceptions that `run.statement.not_covered` lists: see `ClippedUpdates` and `PrivacyPlan`.

    Errors: `SfumatoError` for anything that is refused, before anything is spent.
    """
    own, name = (model, OWN_MODEL) if isinstance(model, nn.Module) else (None, model)
    experiment = from_choices(EmbeddingExperiment, {"model": name, **choices})
    options = {"budget": budget, "keep": keep}
    trial = Trial(experiment=experiment, source=source, device=device, threads=threads, options=options)
    run, progress = RunDirectory(directory), default_progress(progress)
    how: dict[str, Any] = {"progress": progress, "observers": observers, "copy": copy}
    return execute_in_workers(lambda: trial.job(run, progress, own=own), run, **how)
