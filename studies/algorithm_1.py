"""Batch norm as Davody et al. 2020 (arXiv 2006.10919) print it, algorithm 1: to reproduce, without a promise.

Each step normalises the private batch X together with M public examples, and clips the gradient of each example's own
loss. But that loss depends on the whole batch, through the statistics: one example moves all clipped gradients, and the
sum by far more than C (`largest_move`). So the claimed guarantee does not hold, and nothing here states one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from sfumato._checks import SfumatoError, positive, positive_integer
from sfumato.privacy import PrivacyPlan
from sfumato.randomness import Noise, RunKey, Sampler

METHOD = "algorithm 1 of Davody et al. 2020 as printed"
WHY = (
    "it normalises by the private batch, so one example moves the gradients of all others too, and the clipped sum by "
    "more than C, to which the noise is scaled"
)


@dataclass(frozen=True, kw_only=True)
class Printed:
    """What came of the printed algorithm.

    Args:
        module: trained; in evaluation it normalises each image with the public ones (`outputs`).
        claimed: epsilon that the paper's accounting would state for the plan.
    """

    module: nn.Module
    claimed: float

    @property
    def statement(self) -> dict[str, Any]:
        """That nothing is promised, and why."""
        return {"epsilon": None, "claimed": self.claimed, "status": "claimed, does not hold", "reason": WHY}


def clipped_gradients(
    module: nn.Module, images: Tensor, labels: Tensor, public: Tensor, *, max_norm: float
) -> list[dict[str, Tensor]]:
    """The clipped gradient of each example's own loss, in a batch that is normalised as a whole.

    Args:
        module: with batch norm, which is run in training mode without keeping statistics.
        images, labels: the private batch (L, ...), (L,).
        public: (M, ...), which count in the statistics alone.
        max_norm: C.
    """
    parameters = {name: value for name, value in module.named_parameters() if value.requires_grad}
    found = []
    with _by_the_batch(module):
        losses = functional.cross_entropy(module(torch.cat([images, public]))[: len(images)], labels, reduction="none")
        for place in range(len(losses)):
            own = torch.autograd.grad(losses[place], list(parameters.values()), retain_graph=True)
            norm = torch.stack([value.square().sum() for value in own]).sum().sqrt()
            scale = min(1.0, max_norm / max(norm.item(), 1e-12))
            found.append({name: scale * value for name, value in zip(parameters, own, strict=True)})
    return found


def clipped_sum(
    module: nn.Module, images: Tensor, labels: Tensor, public: Tensor, *, max_norm: float
) -> dict[str, Tensor]:
    """The sum of `clipped_gradients`."""
    total = {name: torch.zeros_like(value) for name, value in module.named_parameters() if value.requires_grad}
    for one in clipped_gradients(module, images, labels, public, max_norm=max_norm) if len(images) else []:
        for name, value in one.items():
            total[name] += value
    return total


def largest_move(module: nn.Module, images: Tensor, labels: Tensor, public: Tensor, *, max_norm: float) -> float:
    """By how much, in C, removing a single example moves the sum at most: 1 is what the noise is scaled to."""
    whole = clipped_sum(module, images, labels, public, max_norm=max_norm)
    moves = []
    for place in range(len(images)):
        kept = torch.arange(len(images)) != place
        less = clipped_sum(module, images[kept], labels[kept], public, max_norm=max_norm)
        moves.append(math.sqrt(sum((whole[name] - less[name]).square().sum().item() for name in whole)))
    return max(moves) / max_norm


def train(
    module: nn.Module,
    images: Tensor,
    labels: Tensor,
    public: Tensor,
    plan: PrivacyPlan,
    *,
    learning_rate: float,
    seed: int,
    running: float | None = None,
) -> Printed:
    """Algorithm 1: noisy sums of `clipped_gradients` of drawn batches, and plain steps. It promises nothing.

    With `running` it is what section 3 dismisses: no public examples, and running statistics for the test phase, to
    which each step adds the batch's own, with noise by `sensitivities` and the plan's multiplier.

    Args:
        module: with batch norm; trained in place.
        images, labels: of the whole training part.
        public: the M public examples.
        plan: batches, steps and noise; its epsilon is what would be claimed.
        learning_rate: for sums that are divided by B C.
        seed: of the draws; there is no secret here to keep.
        running: C', to which values before a batch norm are clipped for its running statistics; None for none.
    """
    positive("learning_rate", learning_rate)
    if not any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in module.modules()):
        raise SfumatoError("the module has no batch norm", "give one such as lenet5,norm=batch")
    key = RunKey.from_seed(seed, "printed 2020")
    noise, sampler = Noise(plan.mechanism, max_norm=plan.max_norm, key=key), Sampler(plan, key, records=len(images))
    parameters = {name: value for name, value in module.named_parameters() if value.requires_grad}
    state, generator = noise.begin(), torch.Generator().manual_seed(seed)
    for step in range(plan.steps):
        rows = torch.from_numpy(np.asarray(sampler.draw(step)))
        total = clipped_sum(module, images[rows], labels[rows], public, max_norm=plan.max_norm)
        noisy, state = noise.add(total, step, state)
        with torch.no_grad():
            for name, value in parameters.items():
                value -= learning_rate * noisy[name] / (plan.expected_batch_size * plan.max_norm)
        if running is not None and len(rows):
            _run_on(module, images[rows], running, plan.noise_multiplier, generator)
    return Printed(module=module, claimed=plan.epsilon())


def outputs(module: nn.Module, images: Tensor, public: Tensor) -> Tensor:
    """The paper's test phase: each image's logits in a batch of its own with the public examples."""
    with _by_the_batch(module), torch.no_grad():
        return torch.cat([module(torch.cat([image.unsqueeze(0), public]))[:1] for image in images])


def _run_on(module: nn.Module, images: Tensor, largest: float, deviation: float, generator: torch.Generator) -> None:
    """Equations 9 and 10 of the paper, with noise: running statistics go a tenth of the way to those of this batch."""
    of_mean, of_variance = sensitivities(largest, len(images))

    def add(layer: Any, inputs: tuple[Tensor]) -> None:
        flat = inputs[0].clamp(0, largest).transpose(0, 1).flatten(1)
        variance, mean = torch.var_mean(flat, dim=1, correction=0)
        mean = mean + deviation * of_mean * torch.randn(len(mean), generator=generator)
        variance = variance + deviation * of_variance * torch.randn(len(mean), generator=generator)
        layer.running_mean.lerp_(mean, 0.1)
        layer.running_var.lerp_(variance.clamp_min(0), 0.1)

    handles = [layer.register_forward_pre_hook(add) for layer in _batch_norms(module)]
    try:
        with torch.no_grad():
            module.eval()(images)
    finally:
        for handle in handles:
            handle.remove()


def sensitivities(largest: float, batch: int) -> tuple[float, float]:
    """How far one example moves mean and variance of a unit over a batch (section 3, after Swanberg et al. 2019).

    Args:
        largest: C', to which values are clipped, from 0.
        batch: L.

    Returns:
        S_mu = C' / L and S_sigma^2 = C'^2 (3/L - 3/L^2 + 1/L^3).

    >>> sensitivities(1.0, 2)
    (0.5, 0.875)
    """
    length = positive_integer("batch", batch)
    largest = positive("largest", largest)
    return largest / length, largest**2 * (3 / length - 3 / length**2 + 1 / length**3)


@contextmanager
def _by_the_batch(module: nn.Module) -> Iterator[None]:
    """The module's batch norm in training mode, without running statistics; all as it was afterwards."""
    names = ("training", "track_running_stats", "running_mean", "running_var")
    before = [(layer, [getattr(layer, name) for name in names]) for layer in _batch_norms(module)]
    for layer, _ in before:
        layer.training, layer.track_running_stats = True, False
        layer.running_mean = layer.running_var = None
    try:
        yield
    finally:
        for layer, values in before:
            for name, value in zip(names, values, strict=True):
                setattr(layer, name, value)


def _batch_norms(module: nn.Module) -> Iterator[nn.modules.batchnorm._BatchNorm]:
    return (layer for layer in module.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm))
