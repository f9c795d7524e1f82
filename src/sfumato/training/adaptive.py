"""A private step whose clipping norm follows a quantile of the norms that it clips (Andrew et al. 2021)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from sfumato._checks import SfumatoError
from sfumato.privacy import Quantile
from sfumato.randomness import NoiseState
from sfumato.training.step import PrivateStep, Query

COUNT = "vectors within the norm"
NORM = "norm of the next step"
FARTHEST = 1e6
"""By so much, at most, the norm leaves the first one, in either direction."""


class AdaptiveQuery(Query, Protocol):
    """A query whose bound may be another one in each step."""

    def at(self, max_norm: float) -> Query:
        """The same with another C; what it returns has `within`, the centred count, beside `gradients`."""
        ...


@dataclass(frozen=True, kw_only=True)
class AdaptiveStep(PrivateStep):
    """The same with C_t from step to step, and the count that it follows as one more coordinate of the release:

        y_t = ( sum_i d_i / C_t,  (z / sigma_b) sum_i (1[|d_i| <= C_t] - 1/2) )  +  z xi,   |d_i| <= C_t
        the gradient is C_t y_t / divisor;  b = (sigma_b / z) y_t[count] / m + 1/2;  C_{t+1} = C_t exp(-eta (b - gamma))

    Args:
        plan: its clipping is a `Quantile`.
        gradient: as for `PrivateStep`, with `at(max_norm)`, and with `within`, the centred count, beside `gradients`.
        noise: of the plan's mechanism, for sums in units of C: `max_norm` is 1.
        divisor: m, the declared number of vectors in a step.

    **Guarantee.** What a call returns, the next step's norm in the state among it, is one release of `plan` and what
    follows from it: a vector and its indicator have together the norm that `Quantile.joint_noise` counts, so the plan's
    theorem speaks of both at once, whatever the mechanism; C_t is a function of earlier releases, and noise that
    remembers earlier steps is added to sums in units of the C of their own step. The rest is as for `PrivateStep`.
    """

    gradient: AdaptiveQuery

    def _check_clipping(self) -> None:
        if not isinstance(self.plan.clipping, Quantile) or self.divisor is None:
            raise SfumatoError(
                f"the plan's clipping is {self.plan.clipping} and the divisor {self.divisor}",
                "give a plan with clipping=Quantile(...), and the declared number of vectors as divisor",
            )
        if self.noise.max_norm != 1 or self.noise.mechanism != self.plan.mechanism:
            raise SfumatoError(
                f"the noise is {self.noise.mechanism} for max_norm {self.noise.max_norm}, but the plan needs "
                f"{self.plan.mechanism} for sums in units of the norm",
                "build Noise with plan.mechanism and max_norm=1",
            )

    def max_norm(self, state: NoiseState) -> float:
        """C_t of the step that the state is for: public, like all that was released before."""
        return float(state.tensors[NORM]) if NORM in state.tensors else self.plan.max_norm

    def passed(self, step: int, state: NoiseState) -> NoiseState:
        """As of `PrivateStep`; the norm stays, since it follows from releases alone and this one is lost."""
        self._refuse_beyond(step)
        norm, remembered = self.max_norm(state), {name: one for name, one in state.tensors.items() if name != NORM}
        zeros = {**self.gradient.zeros(), COUNT: torch.zeros(1, dtype=torch.float64)}
        before = NoiseState(step=state.step, tensors=remembered)
        following = self.noise.ahead(zeros, step, before, share=self.workers.share).added_to(zeros)[1]
        following.tensors[NORM] = torch.tensor(norm, dtype=torch.float64)
        return following

    def __call__(  # type: ignore[override]
        self, step: int, micro_batches: Iterable[tuple[Any, ...]], state: NoiseState
    ) -> tuple[dict[str, Tensor], NoiseState]:
        """The private gradient, and the next state, in which the next step's norm lies beside what noise remembers."""
        self._refuse_beyond(step)
        clipping, divisor = self.plan.clipping, self.divisor
        assert isinstance(clipping, Quantile)
        assert divisor is not None
        bound = self.max_norm(state)
        query, count, done = self.gradient.at(bound), 0.0, 0
        total = self._of_nobody(query.zeros(), step, bound)
        for micro_batch in micro_batches:
            found = query(*micro_batch)
            total.add(found.gradients)
            count, done = count + found.within, done + 1
        self.workers.total(total, step, done)
        count = self.workers.added(count)
        scale = self.plan.noise_multiplier / clipping.noise_of_count
        sums = {name: value / bound for name, value in total.value().items()}
        sums[COUNT] = torch.tensor([scale * count], dtype=torch.float64)
        remembered = {name: value for name, value in state.tensors.items() if name != NORM}
        coming = self.noise.ahead(sums, step, NoiseState(step=state.step, tensors=remembered), share=self.workers.share)
        noisy, following = coming.added_to(sums)
        noisy = self.workers.whole(noisy)
        share = clipping.noisy_fraction(float(noisy.pop(COUNT)) / scale, divisor)
        after = min(max(clipping.following(bound, share), self.plan.max_norm / FARTHEST), self.plan.max_norm * FARTHEST)
        following.tensors[NORM] = torch.tensor(after, dtype=torch.float64)
        return {name: value * (bound / divisor) for name, value in noisy.items()}, following
