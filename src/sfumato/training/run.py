"""Training from Python: begin, resume, and finish."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sfumato._cards import card
from sfumato._checks import SfumatoError
from sfumato.observers.observer import MetricsFile, Observer, ProgressObserver
from sfumato.observers.progress import NoProgress, Progress
from sfumato.privacy import Ledger, NoGuarantee, NoPrivateData
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
from sfumato.training.planned import Measure
from sfumato.training.preparation import resume, sources
from sfumato.training.preparation.building import pretraining_digests
from sfumato.training.preparation.estimate import idle_warning
from sfumato.training.preparation.resume import take_part


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
        for note in notes_before(job, history):
            progress.report(note)
        resume.begin(job, run, history)
    heading.add_to(run)
    private = isinstance(job, PrivateJob)
    with Ledger(run / names.LEDGER, notify=progress.report) if private else nullcontext() as ledger:
        refuse_finished(run)  # another process may have finished it meanwhile
        remove_temporary(run.path)
        launch.current_workers().announce_run(run)
        outcome, scorer = take_remaining_steps(job, run, ledger, progress=progress, observers=observers, copy=copy)
        if not all(value.isfinite().all() for value in outcome.weights.values()):
            progress.report("note: training diverged: some weights are not finite; give a smaller learning rate")
        if outcome.step < job.steps:
            whole = "; its statement gives the epsilon of the whole plan" * private
            progress.report(f"an observer ended the run after {outcome.step} of {job.steps} steps{whole}")
        progress.report("evaluating; writing the model and its report")
        statement, history = finish.conclude(job, run, ledger, outcome, scorer=scorer)
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


def notes_before(job: PrivateJob | PublicJob, history: History | None) -> Iterator[str]:
    """Messages for the owner before the run begins."""
    if (warning := uses.declared_public_note(job.source)) is not None:
        yield warning
    if isinstance(job, PublicJob):
        return
    source = job.source
    yield from sources.notes(source, job.plan)
    yield from (f"note: {note}" for note in job.notes)
    yield from resume.earlier_use_notes(job, history)
    if job.settings.objective.class_prevalence is not None:
        named = "labels" if source.multilabel else "classes"
        yield f"note: with weights by `class_prevalence`, rare {named} are recognised more often and others less often"
    if job.public_examples is not None:
        yield from job.public_examples.notes(source)
    yield from store.unlisted_notes(source, pretraining_digests(source, job.settings))


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
