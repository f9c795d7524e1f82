"""The steps of a run, private or public.

Where the plan draws users, all records of a user are in one micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sfumato import _devices
from sfumato._checks import SfumatoError
from sfumato.data import ViewDraws, by_user
from sfumato.models import classifier_names
from sfumato.models.losses import LOSSES
from sfumato.observers.progress import Progress
from sfumato.privacy import QuantileClipping
from sfumato.randomness import NoiseState, RunKey, Sampler
from sfumato.training import launch
from sfumato.training.clients import NoiselessSteps, Rounds
from sfumato.training.inputs import Inputs, dropout_keys, load_to_device, make_views
from sfumato.training.job import PrivateJob, PublicJob
from sfumato.training.planned import PlannedJob, RunKind, Steps
from sfumato.training.preparation.building import noise_named
from sfumato.training.scorers import scorer_of
from sfumato.training.step import AdaptiveStep, PrivateStep, PrivateTrainingSteps
from sfumato.training.user_records import UserRecords, record_shares
from sfumato.training.workers import ALONE, Workers

# The arguments of `UserGradient`: inputs, targets, shares, keys.
UserBatch = tuple[Tensor, Tensor, Tensor, Tensor | None]


class UserInputs(Inputs):
    """The training records as the model's inputs, in micro-batches of whole users.

    All records of a user have equal shares; for next-word prediction shares are proportional to the number of words, so
    that a user's loss is the mean over their words.

    **Guarantee.** All records that a user shows in a step are in one micro-batch, each once, with shares that sum to 1.
    Which these are, how they are padded, their views and the user's dropout masks are functions of that user, of public
    constants and of draws by (key, step, the user's name): `UserRecords`.
    """

    def __init__(self, job: PrivateJob, progress: Progress | None = None):
        super().__init__(job, progress)
        self._users = UserRecords.from_numbers(*by_user(job.source.train), job.plan.unit.per_step)

    @property
    def units(self) -> int:
        """The number of users."""
        return len(self._users)

    def micro_batches(  # type: ignore[override]
        self, key: RunKey, step: int, participants: np.ndarray, workers: Workers = ALONE
    ) -> Iterator[UserBatch]:
        """Yields the step's users (ascending numbers) in micro-batches: inputs (b, R, ...) or (b, R, K, ...), targets
        and shares (b, R), and dropout keys (b, 4)."""
        job = self._job
        pieces = list(self._users.pieces(participants, job.performance.micro_batch, key, step))
        records = job.source.images_for(job.views)
        dealt = workers.deal(step, participants, [rows.size for _, rows, _ in pieces])
        pieces = [pieces[place] for place in dealt]
        stored = self._read(records, [rows.reshape(-1) for _, rows, _ in pieces])
        for (users, rows, own), taken in zip(pieces, stored, strict=True):
            names = [self._users.draw_name(user) for user in users]
            draws = self._draw_views(key, step, names, rows.shape[1])
            found = self._compute(rows.reshape(-1), draws, taken)
            inputs, targets = (flat.unflatten(0, rows.shape) for flat in found)
            mask = _devices.to_device(own, job.device)
            torch.manual_seed(key.seed("model", step, f"user {users[0]}"))
            keys = dropout_keys(key, step, names) if job.gradient.uses_keys else None
            yield inputs, targets, record_shares(mask, targets, next_words=job.source.next_words), keys

    def _draw_views(self, key: RunKey, step: int, names: Sequence[str], records: int) -> ViewDraws:
        """The views of so many records of each of these users, in their order."""
        views, size = self._job.views, self._job.source.size
        if not (views.moves or views.flip):  # nothing is drawn
            return views.draw(key.generator("views", step), len(names) * records, size=size)
        first, *others = (views.draw(key.generator("views", step, name), records, size=size) for name in names)
        return first.followed_by(*others)


def private_training_steps(
    job: PlannedJob,
    key: RunKey,
    progress: Progress | None = None,
    *,
    inputs: Any = None,
    kind: type[PrivateTrainingSteps] = PrivateTrainingSteps,
) -> PrivateTrainingSteps:
    """The private steps of a job, all from its plan.

    **Guarantee.** Places in a fixed order and cuts of truncated sampling are those of all records, so that an excluded
    record does not move any other one (unit: one record). For the assignment of users to virtual clients see `Rounds`.

    Args:
        inputs: the units as the gradient's arguments; by default those of the job's source.
    """
    plan, drawn, workers = job.plan, job.plan.unit.drawn, launch.current_workers()
    adaptive = isinstance(plan.clipping, QuantileClipping)
    noise = noise_named(job.noise, plan, key, max_norm=1.0 if adaptive else None)
    step = (AdaptiveStep if adaptive else PrivateStep)(
        plan=plan, gradient=job.gradient, noise=noise, divisor=job.client_count, workers=workers
    )
    of_drawn: Any = {"users": UserInputs, "clients": Rounds.from_job}.get(drawn, Inputs)
    inputs = inputs or of_drawn(job, progress)
    excluded = job.sampler_inputs.get("excluded") if drawn == "examples" else None
    records = inputs.units if excluded is None else len(excluded)
    sampler = Sampler(plan, key, records=records, groups=job.sampler_inputs.get("groups"))
    return kind(step=step, sampler=sampler, inputs=inputs, key=key, performance=job.performance, excluded=excluded)


class DivergedError(SfumatoError):
    """The loss is infinite or not a number."""


class PublicSteps:
    """Computes the mean gradient of a batch from a shuffled epoch, clipped as a whole if the job has a norm for it.

    Several workers share the micro-batches; their gradients are added in order. Without noise or guarantee: for public
    data only.
    """

    def __init__(self, job: PublicJob, key: RunKey, progress: Progress | None = None):
        self._job, self._key, self._workers = job, key, launch.current_workers()
        refuse_running_statistics(job.module, self._workers)
        self._records = job.source.images_for(job.views)
        self._held = None if job.source.cache is not None else load_to_device(job, progress)
        self._trained = {name: value for name, value in job.module.named_parameters() if value.requires_grad}
        last = tuple(f"{name}." for name in classifier_names(job.module))
        self._before_classifier = [value for name, value in self._trained.items() if not name.startswith(last)]
        if job.agc is not None and not self._before_classifier:
            raise SfumatoError(
                f"agc is {job.agc:g}, but the classifier alone is trained, whose gradients it leaves as they are",
                "leave agc out, or train more layers",
            )
        self._loss = 0.0
        self._epoch, self._order = -1, np.empty(0, np.int64)

    def __call__(self, step: int, state: NoiseState) -> tuple[dict[str, Tensor | None], NoiseState]:
        """Returns the mean gradient of a step's batch, with None for parameters that the loss does not depend on."""
        job, workers, chosen = self._job, self._workers, self.batch(step)
        draws = job.views.draw(self._key.generator("views", step), len(chosen), size=job.source.size)
        # Micro-batches of nearly equal size: batch norm fails on a last one with a single example.
        pieces = np.array_split(np.arange(len(chosen)), -(-len(chosen) // job.performance.micro_batch))
        own_losses, own_used = torch.zeros(len(pieces), dtype=torch.float64), torch.zeros(len(self._trained))

        def gradients() -> Iterator[dict[str, Tensor]]:
            for place in range(workers.rank, len(pieces), workers.count):
                own_losses[place] = self._backward(step, chosen, pieces[place], draws)
                own_used.add_(torch.tensor([value.grad is not None for value in self._trained.values()]))
                yield {name: _pop_gradient(value) for name, value in self._trained.items()}

        total = workers.ordered_sum(gradients(), len(pieces), self._trained)
        losses, used = (torch.stack(workers.gather(one)).sum(0).tolist() for one in (own_losses, own_used))
        self._loss = sum(losses)
        if not np.isfinite(self._loss):
            raise DivergedError(
                f"the loss is {self._loss} at step {step}: training has diverged",
                "give a smaller learning rate, or some warm-up, and another `directory`",
            )
        for (name, value), found in zip(self._trained.items(), used, strict=True):
            value.grad = total[name] if found else None
        if job.max_norm is not None:
            torch.nn.utils.clip_grad_norm_(self._trained.values(), job.max_norm)
        if job.agc is not None:
            from timm.utils.agc import adaptive_clip_grad

            adaptive_clip_grad(self._before_classifier, clip_factor=job.agc)
        return {name: value.grad for name, value in self._trained.items()}, NoiseState(step=step + 1)

    def _backward(self, step: int, chosen: np.ndarray, piece: np.ndarray, draws: ViewDraws) -> float:
        """The micro-batch's contribution to the mean loss; leaves its gradient in the parameters' `.grad`."""
        job, rule, rows = self._job, self._job.views, chosen[piece]
        torch.manual_seed(self._key.seed("model", step, str(piece[0])))
        if self._held is None:
            read = self._records.take(rows), self._records.labels[rows]
            stored, labels = (_devices.to_device(one, job.device) for one in read)
        else:
            stored, labels = self._held.take(rows)
        if job.source.cache is None:
            stored = make_views(stored, draws[piece[0] : piece[-1] + 1], job.source, rule, job.transform)
        views = stored[:, -rule.count :].flatten(0, 1)
        targets = labels.repeat_interleave(rule.count, dim=0)
        loss = LOSSES[job.settings.objective.loss](job.module(views), targets) * (len(rows) / len(chosen))
        loss.backward()
        return loss.item()

    def batch(self, step: int) -> np.ndarray:
        """Rows of the step's batch. The order of an epoch is a function of (key, epoch)."""
        size, examples = self._job.batch_size, len(self._job.source.train)
        epoch, place = divmod(step, examples // size)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, self._key.generator("epoch", epoch).permutation(examples)
        return self._order[place * size : (place + 1) * size]

    def figures(self, step: int) -> dict[str, Any]:
        """The mean loss of the last batch."""
        return {"training_loss": self._loss}


def refuse_running_statistics(module: nn.Module, workers: Workers) -> None:
    """Refuse to train a model with running statistics in several processes."""
    if workers.count > 1 and any(getattr(layer, "running_mean", None) is not None for layer in module.modules()):
        raise SfumatoError(
            "the model has running batch statistics (batch norm), which several processes cannot share",
            "use one process, or a model with group norm",
        )


def _pop_gradient(parameter: nn.Parameter) -> Tensor:
    """Takes the gradient away from the parameter; zeros where the loss does not depend on it."""
    found, parameter.grad = parameter.grad, None
    return torch.zeros_like(parameter) if found is None else found


class NoSteps:
    """The steps of an untrained embedding: there are none, and no training data are read."""

    def __call__(self, step: int, state: NoiseState) -> tuple[dict[str, Tensor], NoiseState]:
        """Raises TypeError."""
        raise TypeError("an untrained embedding has no steps")

    def figures(self, step: int) -> dict[str, Any]:
        """No figures."""
        return {}


def public_steps_of(job: PublicJob, key: RunKey, progress: Progress | None = None) -> Steps:
    """The steps of a run without a plan: on batches, in rounds of virtual clients, or none."""
    if not job.uses_data:
        return NoSteps()
    in_rounds = job.embedding is not None and job.embedding.rounds is not None
    return (NoiselessSteps if in_rounds else PublicSteps)(job, key, progress)


PRIVATE = RunKind(steps=private_training_steps, scorer=scorer_of)
PUBLIC = RunKind(steps=public_steps_of, scorer=scorer_of)
"""Kinds of runs: private, and without privacy."""
