"""Taking part in runs that another process leads."""

from __future__ import annotations

from collections.abc import Callable

from sfumato._checks import SfumatoError
from sfumato.observers.progress import Silence
from sfumato.runs.directory import RunDirectory
from sfumato.training.job import PrivateJob, PublicJob
from sfumato.training.loop import Outcome, take_steps
from sfumato.training.preparation import resume
from sfumato.training.workers import Workers


def follow(workers: Workers, read: Callable[[str], tuple[PrivateJob | PublicJob, RunDirectory]]) -> None:
    """Take part in each run that the leader begins or goes on with, as its own record says.

    Args:
        read: the job of a run directory, from its record.
    """
    while (run := workers.led()) is not None:
        take_part(read(str(run.path))[0], run, workers)


def take_part(job: PrivateJob | PublicJob, run: RunDirectory, workers: Workers) -> Outcome:
    """What a worker does of a run that another one leads: all steps that are still to be taken, from its checkpoint on.

    Errors: `SfumatoError`, naming the difference, where this worker's data, plan, settings, model or machine are others
    than the run's.
    """
    resume.compare(job, run)
    key, checkpoint = resume.own_key(run, None), resume.own_checkpoint(run, None, 0)
    if key.check_value(run.identity) != job.key.check_value(run.identity):
        raise SfumatoError(f"the run key in {run.path} was replaced meanwhile", "give the same command again")
    key = resume.opened(key, None, run, salted=False, workers=workers)
    return take_steps(job, run, job.kind.steps(job, key, Silence()), checkpoint, workers=workers)
