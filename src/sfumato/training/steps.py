"""What a run's steps are: private ones by its plan, or those of training without privacy."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from sfumato import _devices
from sfumato._checks import SfumatoError
from sfumato.models.losses import LOSSES
from sfumato.observers.progress import Progress
from sfumato.privacy import PrivacyPlan
from sfumato.randomness import Noise, NoiseState, RunKey, Sampler
from sfumato.training import together
from sfumato.training.inputs import Inputs, viewed
from sfumato.training.inputs_of_users import UserInputs
from sfumato.training.job import PrivateJob, PublicJob
from sfumato.training.kind import Kind
from sfumato.training.scorer import scorer_of
from sfumato.training.step import PrivateStep


class PrivateSteps:
    """Participants by the plan, their inputs, and the private step.

    **Guarantee.** A record that is left out, since a public example is the same, is drawn as if it were there, and then
    contributes nothing: places in a fixed order, and cuts of truncated sampling, are those of all records, so that it
    moves no other one (unit: one record).
    """

    def __init__(self, job: PrivateJob, key: RunKey, progress: Progress | None = None):
        plan = job.plan
        noise = Noise(plan.mechanism, max_norm=plan.max_norm, key=key)
        self._plan, self._key, self._performance = plan, key, job.performance
        self._workers = together.own()
        self._step = PrivateStep(plan=plan, gradient=job.gradient, noise=noise, workers=self._workers)
        self._inputs = (UserInputs if plan.unit.drawn == "users" else Inputs)(job, progress)
        draws = job.draws
        self._excluded = None if plan.unit.drawn == "users" else draws.get("excluded")
        records = self._inputs.units if self._excluded is None else len(self._excluded)
        self._sampler = Sampler(plan, key, records=records, times=draws.get("times"), groups=draws.get("groups"))

    def __call__(self, step: int, state: NoiseState) -> tuple[dict[str, Tensor], NoiseState]:
        """The private gradient of a step, and the noise's next state."""
        participants = self._sampler.draw(step)
        if self._excluded is not None:
            participants = (np.cumsum(~self._excluded) - 1)[participants[~self._excluded[participants]]]
        with _devices.computing(self._performance.device, self._performance.precision):
            return self._step(step, self._inputs.micro_batches(self._key, step, participants, self._workers), state)

    def figures(self, step: int) -> dict[str, Any]:
        """What so many steps have spent, where the theorem says so of fewer than all; else None."""
        return spent(self._plan, step)


def spent(plan: PrivacyPlan, step: int) -> dict[str, float | None]:
    """Epsilon after so many steps, where the theorem says so of fewer than all; else None."""
    known = plan.theorem.by_prefix or step == plan.steps
    return {"epsilon": plan.epsilon(steps=step) if known else None}


class DivergedError(SfumatoError):
    """Training whose loss is no number any more."""


class PublicSteps:
    """The mean gradient of a piece of a shuffled epoch, clipped as a whole where the job has a norm for it.

    No noise, and no promise: public data only.
    """

    def __init__(self, job: PublicJob, key: RunKey, progress: Progress | None = None):
        self._job, self._key = job, key
        self._records = job.source.images_for(job.views)
        self._trained = {name: value for name, value in job.module.named_parameters() if value.requires_grad}
        self._loss = 0.0
        self._epoch, self._order = -1, np.empty(0, np.int64)

    def __call__(self, step: int, state: NoiseState) -> tuple[dict[str, Tensor | None], NoiseState]:
        """The mean gradient of a step's batch; None for a parameter that the loss does not depend on."""
        job, rule = self._job, self._job.views
        torch.manual_seed(self._key.seed("model", step))
        chosen = self.batch(step)
        draws = rule.draw(self._key.generator("views", step), len(chosen), size=job.source.size)
        self._loss = 0.0
        # Pieces of nearly one size: batch norm cannot do with a last one of a single example.
        for piece in np.array_split(np.arange(len(chosen)), -(-len(chosen) // job.performance.micro_batch)):
            rows = chosen[piece]
            stored = _devices.sent(self._records.take(rows), job.device)
            if job.source.cache is None:
                stored = viewed(stored, draws[piece[0] : piece[-1] + 1], job.source, rule, job.transform)
            views = stored[:, -rule.count :].flatten(0, 1)
            targets = _devices.sent(self._records.labels[rows], job.device).repeat_interleave(rule.count)
            loss = LOSSES[job.settings.objective.loss](job.module(views), targets) * (len(rows) / len(chosen))
            loss.backward()
            self._loss += loss.item()
        if not np.isfinite(self._loss):
            raise DivergedError(
                f"the loss is {self._loss} at step {step}: training has diverged",
                "give a smaller learning rate, or some warm-up, and another `directory`",
            )
        if job.max_norm is not None:
            torch.nn.utils.clip_grad_norm_(self._trained.values(), job.max_norm)
        return {name: value.grad for name, value in self._trained.items()}, NoiseState(step=step + 1)

    def batch(self, step: int) -> np.ndarray:
        """The step's piece of its epoch, which is shuffled by a function of (key, epoch)."""
        size, examples = self._job.batch_size, len(self._job.source.train)
        epoch, place = divmod(step, examples // size)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, self._key.generator("epoch", epoch).permutation(examples)
        return self._order[place * size : (place + 1) * size]

    def figures(self, step: int) -> dict[str, Any]:
        """The mean loss of the last batch."""
        return {"training_loss": self._loss}


PRIVATE = Kind(steps=PrivateSteps, scorer=scorer_of)
PUBLIC = Kind(steps=PublicSteps, scorer=scorer_of)
"""Classifiers, with a promise and without one."""
