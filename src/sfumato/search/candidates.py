"""Candidates of a private selection: trained by one plan, scored, and only the winner concluded."""

from __future__ import annotations

import copy

import torch

from sfumato.data import Part
from sfumato.evaluation import accuracy
from sfumato.gradients import outputs_alone, same_throughout
from sfumato.observers.progress import Progress
from sfumato.privacy import Ledger, PrivateSelection
from sfumato.runs import directory as names
from sfumato.runs.directory import RunDirectory, sweep
from sfumato.runs.run import Run, read
from sfumato.training.conclusion import finish
from sfumato.training.job import PrivateJob
from sfumato.training.loop import Outcome
from sfumato.training.preparation import resume
from sfumato.training.run import go_on


def train_candidate(job: PrivateJob, run: RunDirectory, *, progress: Progress | None = None) -> Outcome:
    """All steps of a candidate, begun, resumed or taken before. It is not concluded: nothing of it may be released.

    **Guarantee.** The candidate's releases are those of `job.plan`, paid in its own ledger with randomness of its own.
    """
    if not run.exists:
        resume.begin(job, run)
    else:
        resume.compare(job, run)
    with Ledger(run / names.LEDGER) as ledger:
        sweep(run.path)
        return go_on(job, run, ledger, progress=progress)[0]


def right_answers(job: PrivateJob, outcome: Outcome, validation: Part) -> int:
    """How many validation records the candidate labels rightly. Private: to be used with noise, or on public data.

    Outputs that are not finite are no labels: a candidate that has diverged counts as the worst.

    **Guarantee.** Each record is labelled by itself (`outputs_alone`), so adding or removing one validation record
    moves the count by at most 1.
    """
    module = copy.deepcopy(job.module).eval()
    module.load_state_dict(outcome.weights)
    right = 0
    with same_throughout(module, torch.zeros(1, *job.source.shape, device=job.device)):
        for start in range(0, len(validation), accuracy.BATCH):
            part = slice(start, start + accuracy.BATCH)
            images = job.transform(torch.from_numpy(validation.take(part)).to(job.device))
            outputs = outputs_alone(module, images).cpu()
            known = torch.from_numpy(validation.labels[part])
            right += int(((outputs.argmax(1) == known) & outputs.isfinite().all(1)).sum())
    return right


def conclude_winner(job: PrivateJob, run: RunDirectory, outcome: Outcome, selection: PrivateSelection) -> Run:
    """Write what the winner leaves behind, with the statement of the whole search."""
    with Ledger(run / names.LEDGER) as ledger:
        finish.conclude(job, run, ledger, outcome, selection=selection)
    return read(run)
