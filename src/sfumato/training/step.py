"""One private step: clip, sum, noise, divide. The page to read when the question is whether a run is private.

The accounting, the sampler, the noise and the sensitivity all come from one `PrivacyPlan`. This is the only place
where the plan, the clipped gradient and the noise meet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sfumato._checks import SfumatoError
from sfumato.gradients import ClippedGradient
from sfumato.privacy import PrivacyPlan
from sfumato.randomness import Noise


@dataclass(frozen=True, kw_only=True)
class PrivateStep:
    """The private gradient of one step (De 2022, equation 4):

        (1 / (B C)) * [ sum_i clip_C( (1/K) sum_k grad loss(x_ik, y_i) )  +  sigma C xi ],   xi ~ N(0, I)

    Args:
        plan: B (expected batch size, a public constant), C, sigma and the number of steps.
        gradient: the clipped sum over the examples of a micro-batch.
        noise: one draw for each step.

    **Guarantee.** What a call returns is one release of `plan`: unit and adjacency are the plan's; the sum's
    sensitivity is `gradient.sensitivity(plan.adjacency)`, by which the noise was scaled (checked here); everything
    that depends on private data passes through `gradient` and gets the noise before it leaves. The divisor is public. A
    step beyond the plan's last is refused. The caller must take the participants from a sampler built from
    `plan.participation` and call each step once, or again with the same participants.
    """

    plan: PrivacyPlan
    gradient: ClippedGradient
    noise: Noise

    def __post_init__(self) -> None:
        bound = self.gradient.sensitivity(self.plan.adjacency)
        if self.gradient.max_norm != self.plan.max_norm:
            raise SfumatoError(
                f"the gradient clips to {self.gradient.max_norm}, but the plan says max_norm {self.plan.max_norm}",
                "build ClippedGradient with max_norm=plan.max_norm",
            )
        if self.noise.sensitivity != bound or self.noise.mechanism != self.plan.mechanism:
            raise SfumatoError(
                f"the noise is {self.noise.mechanism} for sensitivity {self.noise.sensitivity}, but the plan needs "
                f"{self.plan.mechanism} for sensitivity {bound}",
                "build Noise with plan.mechanism and gradient.sensitivity(plan.adjacency)",
            )

    def __call__(self, step: int, micro_batches: Iterable[tuple[Any, ...]]) -> dict[str, Tensor]:
        """The private gradient: {parameter: float32 tensor}.

        Args:
            step: 0 for the first.
            micro_batches: pieces of the participants, each the arguments of `gradient`: inputs (b, ...) or (b, K, ...),
                targets (b, ...) and, if wanted, keys (b, 4); none for an empty batch, which is a release like any
                other: noise alone.
        """
        if not 0 <= step < self.plan.steps:
            raise SfumatoError(
                f"step must lie in 0..{self.plan.steps - 1}, got {step}", "plan more steps before the run begins"
            )
        total = {name: zero.double() for name, zero in self.gradient.zeros().items()}  # rounding must not add up
        for micro_batch in micro_batches:
            for name, part in self.gradient(*micro_batch).gradients.items():
                total[name] += part
        noisy = self.noise.add(total, step)
        divisor = self.plan.expected_batch_size * self.plan.max_norm
        return {name: value / divisor for name, value in noisy.items()}


def descend(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, Tensor], private_gradient: Mapping[str, Tensor]
) -> None:
    """One step of the optimizer along a private gradient; what an optimizer makes of it is post-processing."""
    for name, parameter in parameters.items():
        parameter.grad = private_gradient[name].to(parameter.dtype)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
