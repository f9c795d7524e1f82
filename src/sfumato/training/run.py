"""Training from Python: begin, resume, and finish."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from inspect import signature
from pathlib import Path
from typing import Any

from torch import nn

from sfumato._cards import card
from sfumato._checks import SfumatoError
from sfumato._devices import is_follower
from sfumato.averaging import EMA
from sfumato.data import Source, SourceSpec
from sfumato.experiment import to_recipe, users
from sfumato.experiment.experiment import Experiment, forecast
from sfumato.experiment.from_keywords import experiment_of, refuse_budget, refuse_others, settings_of
from sfumato.experiment.settings import OWN_MODEL, Settings, refuse_noise
from sfumato.observers.observer import MetricsFile, Observer, ProgressObserver
from sfumato.observers.progress import NoProgress, Progress, default_progress
from sfumato.privacy import Ledger, NoGuarantee, NoPrivateData, PrivacyPlan
from sfumato.randomness import owner_key
from sfumato.runs import directory as names
from sfumato.runs.directory import Heading, RunDirectory, remove_temporary
from sfumato.runs.owner import budgets, store, uses
from sfumato.runs.owner.lines import DataIdentity
from sfumato.runs.owner.store import History
from sfumato.runs.run import PRIVATE, Measured, Run, read
from sfumato.training import launch
from sfumato.training.conclusion import finish, run_report
from sfumato.training.job import PrivateJob, PublicJob
from sfumato.training.loop import Outcome, notify, take_steps
from sfumato.training.parts.options import OPTIONS, RunOptions, split
from sfumato.training.parts.part import Measure
from sfumato.training.preparation import resume, sources
from sfumato.training.preparation.building import pretraining_digests
from sfumato.training.preparation.estimate import idle_warning
from sfumato.training.preparation.prepare import check_machine, own_threads, prepare
from sfumato.training.preparation.resume import take_part
from sfumato.training.preparation.start import Machine, Start


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
    own_names = {*signature(train).parameters, *(one.name for one in fields(Machine)), *OPTIONS}
    own_names -= {"choices"}
    refuse_others(Experiment, choices, own_names)
    heading, progress = Heading(title=title), NoProgress() if is_follower() else default_progress(progress)
    own, name = (model, OWN_MODEL) if isinstance(model, nn.Module) else (None, model)
    options, choices = split(choices)
    machine = Machine(**{one.name: choices.pop(one.name, None) for one in fields(Machine)})
    if plan is None:
        experiment = experiment_of(settings, name, averaging, choices)
        check_machine(machine)
        source, request = _opened(source, experiment, machine, options)
        plan, settings, reasons = experiment.decide(source)
        for line in reasons:
            progress.report(line)
        if (expected := forecast(plan, settings, source)) is not None:
            progress.report(f"expected: {expected}")
    else:
        refuse_budget(choices)
        check_machine(machine)
        source, request = _opened_for_plan(source, plan, settings_of(settings, name, averaging, choices), options)
        settings = settings_of(settings, name, averaging, choices, source)
    run = RunDirectory(directory)

    def job() -> PrivateJob:
        return prepare(
            own, source, plan, settings, Start.for_run(run, machine=machine, request=request), **vars(options)
        )

    return execute_in_workers(job, run, heading=heading, progress=progress, observers=observers, copy=copy)


def _opened(
    source: Any, experiment: Experiment, machine: Machine, options: RunOptions
) -> tuple[Source, dict[str, Any]]:
    """The records that an experiment trains on, and its request if the source was given by its spelling."""
    zoom, request = experiment.zoom or 1.0, dict[str, Any]()
    if isinstance(source, str):
        spec = SourceSpec(spec=source, zoom=zoom)
        experiment.check_source(spec)
        options.check(public=spec.is_public)
        source, request = spec.open(owner_key()), to_recipe.request_of(spec, experiment, machine, options)
    return experiment.select_records(sources.open_data(source, zoom=zoom)), request


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
        source = sources.open_data(source, **declared)
    return users.cap_for_plan(source, plan), request


@dataclass(frozen=True, kw_only=True)
class PublicRun(Measured):
    """A finished run without privacy: its files and its figures on the test split."""

    directory: Path
    statement: NoGuarantee
    seconds: float
    steps: int

    def __repr__(self) -> str:
        measured = "".join(f"{name} {value}, " for name, value in self.main_figures if self.is_public)
        kind = "no private data used" if isinstance(self.statement, NoPrivateData) else "without privacy"
        return f"PublicRun({str(self.directory)!r}: {measured}{kind})"

    def _repr_html_(self) -> str:
        figures = [*self.main_figures, ("steps", f"{self.steps:,}")]
        return card(str(self.directory), figures, self.statement.sentence, "" if self.is_public else PRIVATE)

    @property
    def is_public(self) -> bool:
        """Whether the figures may be shown to others."""
        return not isinstance(self.statement, NoPrivateData) or self.statement.test_public


def execute(
    job: PrivateJob | PublicJob,
    run: RunDirectory,
    *,
    heading: Heading = Heading(),  # noqa: B008 - frozen
    progress: Progress | None = None,
    observers: Sequence[Observer] = (),
    copy: bool = False,
) -> Any:
    """Begin or resume a run of any kind, take its steps and conclude it.

    Args:
        heading: the heading of its report.
        copy: as for `train`.

    Returns:
        A `Run`; for training without privacy a `PublicRun`.
    """
    progress = progress or NoProgress()
    if run.complete():  # the process ended after the last file was written
        resume.compare(job, run, resuming=False)
        notify(observers, "on_finish")
        return read(run)
    refuse_finished(run)
    history = resume.owner_history(job)
    if run.exists:
        resume.compare(job, run)
        if isinstance(job, PrivateJob):
            resume.record_use(job, run, run.identity, history)  # in case its line was lost
        progress.report(f"resuming the unfinished run in {run.path}")
    else:
        for note in _notes(job, history):
            progress.report(note)
        resume.begin(job, run, history)
    heading.add_to(run)
    with _ledger(job, run, progress) as ledger:
        refuse_finished(run)  # another process may have finished it meanwhile
        remove_temporary(run.path)
        launch.current_workers().announce_run(run)
        outcome, scorer = take_remaining_steps(job, run, ledger, progress=progress, observers=observers, copy=copy)
        if not all(value.isfinite().all() for value in outcome.weights.values()):
            progress.report("note: training diverged: some weights are not finite; give a smaller learning rate")
        if outcome.step < job.steps:
            promise = "; its statement gives the epsilon of the whole plan" * isinstance(job, PrivateJob)
            progress.report(f"an observer ended the run after {outcome.step} of {job.steps} steps{promise}")
        progress.report("evaluating; writing the model and its report")
        history = resume.owner_history(job)  # totals count the runs that began meanwhile
        statement = finish.conclude(job, run, ledger, outcome, history, scorer=scorer)
    notify(observers, "on_finish")
    return result_of(job, run, statement, outcome, history)


def execute_in_workers(job: Callable[[], PrivateJob | PublicJob], run: RunDirectory, **how: Any) -> Any:
    """`execute` in all processes of torchrun, of which the first one leads.

    A follower makes its job after the leader has created the run: it uses the run's key and the leader's measurements.
    """
    with launch.join_if_started() as workers:
        if workers.is_leader:
            done = execute(job(), run, **how)
            workers.broadcast_bool(True)
            return done
        if workers.receive_run() is None:
            return read(run)
        outcome = take_part(own := job(), run, workers)
        workers.broadcast_bool(True)
        return read(run) if isinstance(own, PrivateJob) else result_of(own, run, own.statement, outcome, None)


def _notes(job: PrivateJob | PublicJob, history: History | None) -> Iterator[str]:
    """Messages for the owner before the run begins."""
    if (warning := uses.declared_public_note(job.source)) is not None:
        yield warning
    if isinstance(job, PublicJob):
        return
    source = job.source
    yield from sources.notes(source, job.plan)
    yield from (f"note: {note}" for note in job.notes)
    yield from resume.earlier_use_notes(job, history)
    yield from option_notes(job)
    yield from store.unlisted_notes(source, pretraining_digests(source, job.settings))


def option_notes(job: PrivateJob) -> Iterator[str]:
    """Messages about class weights, and about the public examples of the normalisation."""
    if job.settings.objective.class_prevalence is not None:
        named = "labels" if job.source.multilabel else "classes"
        yield f"note: with weights by `class_prevalence`, rare {named} are recognised more often and others less often"
    if job.public_examples is not None:
        yield from job.public_examples.notes(job.source)


def _ledger(job: PrivateJob | PublicJob, run: RunDirectory, progress: Progress) -> AbstractContextManager[Any]:
    """The ledger of a private run; no context for others."""
    return Ledger(run / names.LEDGER, notify=progress.report) if isinstance(job, PrivateJob) else nullcontext()


def take_remaining_steps(
    job: PrivateJob | PublicJob,
    run: RunDirectory,
    ledger: Ledger | None,
    *,
    progress: Progress | None = None,
    observers: Sequence[Observer] = (),
    copy: bool = False,
) -> tuple[Outcome, Measure]:
    """Takes all remaining steps with the run's own key, ledger and checkpoint. Returns the outcome and the scorer."""
    progress, workers, kept = progress or NoProgress(), launch.current_workers(), ()
    if isinstance(job, PrivateJob):
        kept = job.circumstances.kept
        if (idle := idle_warning(job, workers.count)) is not None:
            progress.report(f"note: {idle}")
    take, checkpoint = resume.resumed(job, run, ledger, progress=progress, copy=copy, workers=workers)
    scorer = job.kind.scorer(job, progress)
    shown = ProgressObserver(progress, "training without privacy" if ledger is None else "training")
    known: dict[str, Any] = {"ledger": ledger, "kept": kept, "workers": workers}
    known |= {"scorer": scorer, "observers": (MetricsFile(run), shown, *observers)}
    return take_steps(job, run, take, checkpoint, **known), scorer


def refuse_finished(run: RunDirectory) -> None:
    """Refuse to train again in the directory of a finished run."""
    run.complete()
    if run.finished:
        words = f", with {run / names.RECIPE} for the same settings" if (run / names.RECIPE).exists() else ""
        words += "; the privacy costs of both add up" if (run / names.LEDGER).exists() else ""
        raise SfumatoError(f"the run in {run.path} is finished", f"give another `directory` to train again{words}")


def result_of(
    job: PrivateJob | PublicJob, run: RunDirectory, statement: Any, outcome: Outcome, history: History | None
) -> Any:
    """The result object of a concluded run."""
    known: dict[str, Any] = {"directory": run.path, "statement": statement, "seconds": outcome.seconds}
    known |= {"figures": run.read_json(names.EVALUATION), "steps": outcome.step}
    if isinstance(job, PublicJob):
        return PublicRun(**known)
    data = DataIdentity.from_source(job.source)
    found = uses.EarlierUses(data=data) if history is None else uses.earlier_uses(data, history)
    used = found.plans
    known |= {"kind": job.source.kind, "uses": len(used), "seeded": found.seeded}
    own = [use for use in used if use.unit.name == job.plan.unit.name]
    others = [use for use in used if use.unit.name != job.plan.unit.name]
    return Run(
        **known,
        joint_cost=budgets.joint_cost(own) if len(own) > 1 else None,
        adjacency=budgets.adjacency_of(own) if len(own) > 1 else None,
        other_units=tuple(budgets.joint_costs(others)),
        costs=tuple(run_report.joint_cost_lines(run.read_json(names.SETTINGS), statement.spent, history)),
        publishing=tuple(epsilon for unit, epsilon in found.figures if unit == job.plan.unit.name),
    )
