"""What a worker does that is not the leader: the same steps of the same runs, and nothing beside."""

from __future__ import annotations

from sfumato._checks import SfumatoError
from sfumato.observers.progress import Silence
from sfumato.randomness import RunKey
from sfumato.runs import directory as names
from sfumato.runs.checkpoint import Checkpoint
from sfumato.runs.directory import RunDirectory
from sfumato.training.job import PrivateJob
from sfumato.training.loop import take_steps
from sfumato.training.preparation import recorded, resume
from sfumato.training.workers import Workers


def follow(workers: Workers, *, trust_code: bool = False) -> None:
    """Take part in each run that the leader begins or goes on with, as the run's own record says."""
    while (run := workers.led()) is not None:
        job, _ = recorded.job(str(run.path), trust_code=trust_code)
        take_part(job, run, workers)


def take_part(job: PrivateJob, run: RunDirectory, workers: Workers) -> None:
    """All steps of a run that are still to be taken, beginning where its checkpoint stands.

    Errors: `SfumatoError`, naming the difference, where this worker's data, plan, settings, model or machine are others
    than the run's.
    """
    resume.compare(job, run)
    key, checkpoint = RunKey.load(run / names.RUN_KEY), Checkpoint.load(run / names.CHECKPOINT)
    checkpoint.require_run(run.identity)
    if key.check_value(run.identity) != job.key.check_value(run.identity):
        raise SfumatoError(f"the run key in {run.path} was replaced meanwhile", "give the same command again")
    take_steps(job, run, job.kind.steps(job, key, Silence()), checkpoint, workers=workers)
