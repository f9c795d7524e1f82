"""What the workers of a command do that are not the leader: the same steps of the same runs, and nothing beside."""

from __future__ import annotations

from sfumato.training.preparation import recorded
from sfumato.training.run import take_part
from sfumato.training.workers import Workers


def follow(workers: Workers, *, trust_code: bool = False) -> None:
    """Take part in each run that the leader begins or goes on with, as the run's own record says."""
    while (run := workers.led()) is not None:
        job, _ = recorded.job(str(run.path), trust_code=trust_code)
        take_part(job, run, workers)
