"""Non-private training with noisy weights, to measure their effect (Davody et al. 2020, section 2).

The weights are w ~ N(mu, sigma^2), with a fresh draw in every step and in the test. The means mu are trained. Since
w = mu + sigma z with z ~ N(0, 1) (reparametrisation), the gradient with respect to mu is the gradient with respect to w
at the draw.

The weights and biases of all layers are drawn, including embeddings, but not the gains and shifts of normalisation
layers. The study asks whether a network tolerates noise when the scale of its weights does not matter. The scale of a
gain matters, since no normalisation follows it.
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
from sfumato.models import evaluation_mode
from sfumato.observers.progress import NoProgress, Progress
from sfumato.randomness import NoiseState
from sfumato.training.job import PublicJob
from sfumato.training.step import descend
from sfumato.training.steps import DivergedError, PublicSteps
from sfumato.training.weights import optimizer_for, set_rate

BATCH = 1000
"""The number of test examples that share a draw of the weights."""
NORMALISATIONS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
EARLY = (1 / 8, 1 / 4, 1 / 2)
"""The fractions of the first epoch after which accuracy is measured, in addition to the end of each epoch."""


@dataclass(frozen=True, kw_only=True)
class TrainingCurve:
    """The convergence curve of one training.

    Args:
        points: (epochs, accuracy with drawn weights), in order, on the validation part, or on the test part if no
            validation part was held out.
        diverged: the step at which training ended because its loss was not finite; None if there was none.
        tested: the final accuracy on the test part, if the points are measured on the validation part.
    """

    points: tuple[tuple[float, float], ...]
    diverged: int | None = None
    tested: float | None = None

    @property
    def last(self) -> float:
        """The accuracy of the last point; 0 if the training diverged."""
        return 0.0 if self.diverged is not None or not self.points else self.points[-1][1]

    @property
    def accuracy(self) -> float:
        """The final accuracy on the test part; 0 if the training diverged."""
        return self.last if self.tested is None or self.diverged is not None else self.tested


def train_noisy(job: PublicJob, deviation: float, *, progress: Progress | None = None) -> TrainingCurve:
    """Train the job's module and measure its convergence curve. Afterwards the module's parameters are the means.

    Args:
        job: a training of `steps` steps with `batch_size` examples, without a run directory. Its key decides every
            draw.
        deviation: sigma of the weights; 0 is ordinary training.
        progress: where to report progress.

    **Guarantee.** None: gradients are neither clipped nor noised, and weights are not released.
    """
    progress, module, held_out = progress or NoProgress(), job.module, job.source.held_out
    followed = job.source.test if held_out is None else held_out
    steps, optimizer = PublicSteps(job, job.key), optimizer_for(module, job.settings.descent)
    rate = optim.schedule(job.settings.descent.schedule, steps=job.steps, warmup=job.settings.descent.warmup)
    trained = {name: value for name, value in module.named_parameters() if value.requires_grad}
    means, state, points = noisy_parameters(module), NoiseState(step=0), []
    per_epoch = len(job.source.train) // job.batch_size
    due = evaluation_steps(per_epoch, job.steps)
    with _devices.fork_rng(job.device):
        for step in range(job.steps):
            try:
                with sampled_weights(means, deviation, _generator(job, "weights", step)):
                    gradient, state = steps(step, state)
            except DivergedError:
                return TrainingCurve(points=tuple(points), diverged=step, tested=None if held_out is None else 0.0)
            set_rate(optimizer, job.settings.descent.learning_rate * rate(step))
            descend(optimizer, trained, gradient)
            if step + 1 in due:
                points.append(((step + 1) / per_epoch, accuracy_of(job, deviation, step + 1, followed)))
                progress.advance(step + 1, f"accuracy {points[-1][1]:.1%}")
        tested = None if held_out is None else accuracy_of(job, deviation, job.steps, job.source.test)
    return TrainingCurve(points=tuple(points), tested=tested)


def accuracy_of(job: PublicJob, deviation: float, step: int, part: Part) -> float:
    """The accuracy on a part, with a fresh draw of the weights for every 1,000 examples."""
    module, right = job.module, 0
    means, generator = noisy_parameters(module), _generator(job, "weights in the test", step)
    with evaluation_mode(module), torch.no_grad():
        for start in range(0, len(part), BATCH):
            rows = slice(start, start + BATCH)
            inputs = job.transform(torch.from_numpy(part.take(rows)).to(job.device))
            with sampled_weights(means, deviation, generator):
                chosen = module(inputs).argmax(1).cpu()
            right += int((chosen == torch.from_numpy(part.labels[rows])).sum())
    return right / len(part)


def noisy_parameters(module: nn.Module) -> dict[str, Tensor]:
    """The parameters that are drawn: all trained ones except those of normalisation layers."""
    return {
        f"{place}.{name}".lstrip("."): parameter
        for place, part in module.named_modules()
        if not isinstance(part, NORMALISATIONS)
        for name, parameter in part.named_parameters(recurse=False)
        if parameter.requires_grad
    }


@contextmanager
def sampled_weights(parameters: Mapping[str, Tensor], deviation: float, generator: torch.Generator) -> Iterator[None]:
    """Context in which the parameters hold draws from N(mu, deviation^2). On exit the exact means mu are restored."""
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


def evaluation_steps(per_epoch: int, steps: int) -> set[int]:
    """The steps after which accuracy is measured: fractions of the first epoch, every epoch's end, and the last step.

    >>> sorted(evaluation_steps(per_epoch=16, steps=40))
    [2, 4, 8, 16, 32, 40]
    """
    early = {max(1, round(share * per_epoch)) for share in EARLY}
    return {step for step in (*early, *range(per_epoch, steps + 1, per_epoch), steps) if step <= steps}


def _generator(job: PublicJob, stream: str, step: int) -> torch.Generator:
    return torch.Generator(device=job.device).manual_seed(job.key.seed(stream, step))
