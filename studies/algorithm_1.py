"""Algorithm 1 of Davody et al. 2020 (arXiv 2006.10919) as printed, for reproduction only. It promises nothing.

Each step applies batch norm to the private batch X together with M public examples, and clips the gradient of each
example's loss. But each loss depends on the whole batch through the batch statistics. One example therefore changes all
clipped gradients, and moves their sum by far more than C (`largest_move`). The claimed guarantee does not hold, and
nothing here states one.
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
    """The result of the printed algorithm.

    Args:
        module: the trained module. In evaluation it normalises each image with the public ones (`outputs`).
        claimed: the epsilon that the paper's accounting would state for the plan.
    """

    module: nn.Module
    claimed: float

    @property
    def statement(self) -> dict[str, Any]:
        """The statement that nothing is promised, with the reason."""
        return {"epsilon": None, "claimed": self.claimed, "status": "claimed, does not hold", "reason": WHY}


def clipped_gradients(
    module: nn.Module, images: Tensor, labels: Tensor, public: Tensor, *, max_norm: float
) -> list[dict[str, Tensor]]:
    """The clipped gradient of each example's loss, in a batch that is normalised as a whole.

    Args:
        module: a module with batch norm, which runs in training mode without keeping statistics.
        images, labels: the private batch (L, ...), (L,).
        public: the public examples (M, ...), which count only in the batch statistics.
        max_norm: C.
    """
    parameters = {name: value for name, value in module.named_parameters() if value.requires_grad}
    found = []
    with _batch_statistics(module):
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
    """The largest change of the sum when a single example is removed, in units of C. The noise is scaled to 1."""
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
    """Algorithm 1: noisy sums of `clipped_gradients` over drawn batches, and plain SGD steps. It promises nothing.

    With `running` it is the variant that section 3 dismisses: without public examples, and with running statistics for
    the test phase. Each step updates these with the batch's statistics, with noise scaled by `sensitivities` and the
    plan's noise multiplier.

    Args:
        module: a module with batch norm, which is trained in place.
        images, labels: the whole training part.
        public: the M public examples.
        plan: batches, steps and noise. Its epsilon is the claimed one.
        learning_rate: the learning rate for sums divided by B C.
        seed: the seed of the draws, which need not be secret here.
        running: C', to which the inputs of batch norms are clipped for the running statistics; None for none.
    """
    positive(learning_rate=learning_rate)
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
    """The paper's test phase: the logits of each image, in a separate batch with the public examples."""
    with _batch_statistics(module), torch.no_grad():
        return torch.cat([module(torch.cat([image.unsqueeze(0), public]))[:1] for image in images])


def _run_on(module: nn.Module, images: Tensor, largest: float, deviation: float, generator: torch.Generator) -> None:
    """Equations 9 and 10 of the paper, with noise: move the running statistics a tenth of the way to the batch's."""
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
    """The sensitivities of a unit's mean and variance over a batch (section 3, after Swanberg et al. 2019).

    Args:
        largest: C'. Values are clipped to [0, C'].
        batch: L.

    Returns:
        S_mu = C' / L and S_sigma^2 = C'^2 (3/L - 3/L^2 + 1/L^3).

    >>> sensitivities(1.0, 2)
    (0.5, 0.875)
    """
    length = positive_integer(batch=batch)
    largest = positive(largest=largest)
    return largest / length, largest**2 * (3 / length - 3 / length**2 + 1 / length**3)


@contextmanager
def _batch_statistics(module: nn.Module) -> Iterator[None]:
    """Run the module's batch norms in training mode without running statistics, and restore them afterwards."""
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
