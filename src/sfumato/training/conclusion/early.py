"""The end of a run before its last step."""

from __future__ import annotations

import os
from typing import Any

from torch import nn

from sfumato._checks import SfumatoError
from sfumato.observers.observer import Rows
from sfumato.privacy import Ledger
from sfumato.runs import directory as names
from sfumato.runs.directory import RunDirectory, sweep
from sfumato.runs.run import Run
from sfumato.training.conclusion.finish import conclude
from sfumato.training.job import PrivateJob
from sfumato.training.loop import take_none
from sfumato.training.own.code import Loss, OwnCode
from sfumato.training.own.optimizers import Makes
from sfumato.training.preparation import recorded, resume
from sfumato.training.run import finished, refuse_finished


def finish(
    directory: str | os.PathLike[str],
    *,
    model: nn.Module | str | None = None,
    loss: Loss | None = None,
    optimizer: Makes | None = None,
    source: Any = None,
    trust_code: bool = False,
) -> Run:
    """End an unfinished run of `train` with what its last checkpoint holds, as `sfumato finish` does.

    Args:
        directory: of the run.
        model: where the run trains an object of the caller's own, that or its like; where it trains what a function of
            one's own builds, that function's name, as in "package:function".
        loss, optimizer: where they are objects of the caller's own, these or their like.
        source: the data, where the run was given some from Python in place of a spelling.
        trust_code: run the function of one's own that the run names, whatever its name.

    **Guarantee.** The statement gives the epsilon of the whole plan, however many steps were taken: stopping early
    saves nothing, as the moment may have been chosen by looking at the data (`sfumato.Stop` says more).

    Errors: `SfumatoError` for a finished run, and for code or data other than the run began with.
    """
    place = str(directory)
    if (done := ended(place)) is not None:
        return done
    own = OwnCode(model=model if isinstance(model, nn.Module) else None, loss=loss, optimizer=optimizer)
    named = model if isinstance(model, str) else None
    return finish_early(*recorded.job(place, trust_code=trust_code, named=named, own=own, source=source))


def ended(path: str) -> Run | None:
    """The outcome of a run that had come to its end but for the last moments; None for one that had not.

    Errors: `SfumatoError` for a finished run.
    """
    if (done := recorded.ended(path)) is not None:
        return done
    if RunDirectory(path).finished:
        raise SfumatoError(
            f"the run in {path} is finished",
            f"measure it (sfumato evaluate {path} SOURCE), write its page (sfumato report {path}) or check it "
            f"(sfumato verify {path})",
        )
    return None


def finish_early(job: PrivateJob, run: RunDirectory) -> Run:
    """End an unfinished run with what its last checkpoint holds. The statement is the whole plan's all the same."""
    run.require()
    refuse_finished(run)
    with Ledger(run / names.LEDGER) as ledger:
        sweep(run.path)
        refuse_finished(run)
        resume.compare(job, run, going_on=False)
        checkpoint = resume.own_checkpoint(run, ledger, resume.paid_steps(ledger, job, run))
        outcome = take_none(job, checkpoint)
        resume.went_on(run, job.record(run.identity), checkpoint.step, checkpoint.step)
        Rows(run).begin(checkpoint.step, job.steps)
        statement = conclude(job, run, ledger, outcome)
    return finished(job, run, statement, outcome)
