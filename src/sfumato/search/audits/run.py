"""The audit of a finished run's step, written to the run directory and its report page."""

from __future__ import annotations

from os import PathLike

from torch import nn

from sfumato._files import write
from sfumato.observers.progress import Progress
from sfumato.runs import audit_outcomes
from sfumato.runs import directory as names
from sfumato.runs.audit_outcomes import AuditOutcome
from sfumato.runs.directory import RunDirectory
from sfumato.search.audits.step import audit_step
from sfumato.search.audits.subject import from_run
from sfumato.training.conclusion import run_report


def audit_run(
    directory: str | PathLike[str],
    *,
    model: nn.Module | str | None = None,
    observations: int | None = None,
    confidence: float = 0.95,
    progress: Progress | None = None,
) -> AuditOutcome:
    """Attack a finished run's step on synthetic inputs, check its noise, and write the outcome to the run and its page.

    Args:
        directory: a run of `train`. None of its data are read, and nothing is spent.
        model: the model as for `load`, if the run trained a module of the caller's.
        observations: the number of steps with a canary, and without; by default 5,000, or as many as fit in 18 seconds.
        confidence: one minus the probability that a bound exceeds the truth.
        progress: where to report progress.

    Returns:
        The promised epsilon, the bounds (none for correlated noise), the check of the noise (`noise`), and whether a
        bound lies above the promise or the noise is not the plan's (`refuted`).

    Errors: `SfumatoError` for anything but a finished private run of a classifier with its record, and for clipping
    norms that follow a quantile.
    """
    subject = from_run(directory, model=model)
    found = audit_step(subject, observations=observations, confidence=confidence, progress=progress)
    run = RunDirectory(directory)
    audit_outcomes.save(run, found)
    write(run / names.REPORT, run_report.report(run).encode(), private=True)
    return found
