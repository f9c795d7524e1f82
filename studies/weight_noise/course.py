"""Training with noisy weights, without privacy: what noise in them costs a network (Davody et al. 2020, section 2).

Weights are w ~ N(mu, sigma^2), drawn anew in every step and in the test; the means mu are trained. Since w = mu + sigma
z with z ~ N(0, 1) (the reparametrisation), the gradient by mu is the gradient by w at the draw.

What is drawn are the weights and biases of every layer that has any, embeddings among them; not the gains and shifts of
normalisation layers. The study asks whether a network tolerates noise where the scale of its weights does not
matter, and that of a gain does: no normalisation follows it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from sfumato import _devices, optim
from sfumato.data import Part
from sfumato.models import evaluating
from sfumato.observers.progress import Progress, Silence
from sfumato.randomness import NoiseState
from sfumato.training.descent import optimizer_for, set_rate
from sfumato.training.job import PublicJob
from sfumato.training.step import descend
from sfumato.training.steps import DivergedError, PublicSteps

BATCH = 1000
"""Test examples that see the same draw."""
NORMALISATIONS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
EARLY = (1 / 8, 1 / 4, 1 / 2)
"""Of the first epoch: when it is measured, besides the end of each."""


@dataclass(frozen=True, kw_only=True)
class Course:
    """How one training went.

    Args:
        points: (epochs, accuracy with drawn weights), in their order: on the validation part, or on the test part where
            none was held out.
        diverged: the step whose loss was no number, at which the training ended; None where there was none.
        tested: accuracy on the test part in the end, where points are of the validation part.
    """

    points: tuple[tuple[float, float], ...]
    diverged: int | None = None
    tested: float | None = None

    @property
    def last(self) -> float:
        """The accuracy that the points end with; 0 where the training diverged."""
        return 0.0 if self.diverged is not None or not self.points else self.points[-1][1]

    @property
    def accuracy(self) -> float:
        """On the test part, in the end; 0 where the training diverged."""
        return self.last if self.tested is None or self.diverged is not None else self.tested


def course(job: PublicJob, deviation: float, *, progress: Progress | None = None) -> Course:
    """Train the job's module, whose parameters are the means afterwards, and measure it on its way.

    Args:
        job: `steps` steps of `batch_size` examples; of no run directory. Its key decides every draw.
        deviation: sigma of the weights; 0 is ordinary training.
        progress: is told of steps.

    **Guarantee.** None: gradients are neither clipped nor noised, and weights are not released.
    """
    progress, module, held_out = progress or Silence(), job.module, job.source.held_out
    followed = job.source.test if held_out is None else held_out
    steps, optimizer = PublicSteps(job, job.key), optimizer_for(module, job.settings.descent)
    rate = optim.schedule(job.settings.descent.schedule, steps=job.steps, warmup=job.settings.descent.warmup)
    trained = {name: value for name, value in module.named_parameters() if value.requires_grad}
    means, state, points = noisy_parameters(module), NoiseState(step=0), []
    per_epoch = len(job.source.train) // job.batch_size
    due = measured_after(per_epoch, job.steps)
    with _devices.own_randomness(job.device):
        for step in range(job.steps):
            try:
                with drawn(means, deviation, _generator(job, "weights", step)):
                    gradient, state = steps(step, state)
            except DivergedError:
                return Course(points=tuple(points), diverged=step, tested=None if held_out is None else 0.0)
            set_rate(optimizer, job.settings.descent.learning_rate * rate(step))
            descend(optimizer, trained, gradient)
            if step + 1 in due:
                points.append(((step + 1) / per_epoch, accuracy_of(job, deviation, step + 1, followed)))
                progress.advance(step + 1, f"accuracy {points[-1][1]:.1%}")
        tested = None if held_out is None else accuracy_of(job, deviation, job.steps, job.source.test)
    return Course(points=tuple(points), tested=tested)


def accuracy_of(job: PublicJob, deviation: float, step: int, part: Part) -> float:
    """The share of a part that is classified rightly, the weights drawn anew for each 1,000 of its examples."""
    module, right = job.module, 0
    means, generator = noisy_parameters(module), _generator(job, "weights in the test", step)
    with evaluating(module), torch.no_grad():
        for start in range(0, len(part), BATCH):
            rows = slice(start, start + BATCH)
            inputs = job.transform(torch.from_numpy(part.take(rows)).to(job.device))
            with drawn(means, deviation, generator):
                chosen = module(inputs).argmax(1).cpu()
            right += int((chosen == torch.from_numpy(part.labels[rows])).sum())
    return right / len(part)


def noisy_parameters(module: nn.Module) -> dict[str, Tensor]:
    """The parameters whose values are drawn: all trained ones but those of normalisation layers."""
    return {
        f"{place}.{name}".lstrip("."): parameter
        for place, part in module.named_modules()
        if not isinstance(part, NORMALISATIONS)
        for name, parameter in part.named_parameters(recurse=False)
        if parameter.requires_grad
    }


@contextmanager
def drawn(parameters: Mapping[str, Tensor], deviation: float, generator: torch.Generator) -> Iterator[None]:
    """Within, the parameters hold draws from N(mu, deviation^2); afterwards their means mu again, to the last bit."""
    if not deviation:
        yield
        return
    means = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    with torch.no_grad():
        for parameter in parameters.values():
            noise = torch.randn(parameter.shape, generator=generator, device=parameter.device, dtype=parameter.dtype)
            parameter.add_(noise, alpha=deviation)
    try:
        yield
    finally:
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(means[name])


def measured_after(per_epoch: int, steps: int) -> set[int]:
    """After which steps: at fractions of the first epoch, at the end of each, and at the end of all.

    >>> sorted(measured_after(per_epoch=16, steps=40))
    [2, 4, 8, 16, 32, 40]
    """
    early = {max(1, round(share * per_epoch)) for share in EARLY}
    return {step for step in (*early, *range(per_epoch, steps + 1, per_epoch), steps) if step <= steps}


def _generator(job: PublicJob, stream: str, step: int) -> torch.Generator:
    return torch.Generator(device=job.device).manual_seed(job.key.seed(stream, step))
