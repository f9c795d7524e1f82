"""One private step: clip, sum, add noise, divide. Read this module to check that a run is private.

Accounting, sampler, noise and sensitivity all come from one `PrivacyPlan`. Only here do the plan, the clipped gradient
and the noise meet.

The clipping norm of an adaptive step follows a quantile of the gradient norms (Andrew et al. 2021).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, overload

import numpy as np
import torch
from torch import Tensor

from sfumato import _devices
from sfumato._checks import SfumatoError, positive, within
from sfumato.experiment.settings import Performance
from sfumato.gradients import GridSum
from sfumato.gradients.grid import MOST_EXAMPLES
from sfumato.gradients.sums import QueuedSum
from sfumato.privacy import PrivacyPlan, QuantileClipping
from sfumato.privacy.unit import Drawn
from sfumato.randomness import Noise, NoiseState, RunKey, Sampler
from sfumato.training.workers import ALONE, Workers


class Query(Protocol):
    """A query to the private data: the sum of vectors whose L2 norm is at most `max_norm`.

    `ClippedGradient` is one. A call receives everything that each vector is computed from (an example, all
    participating examples of a user, a client), never only part of it. The `gradients` of its result are the sum by
    parameter name; norms and losses must not leave the step. All numbers must be finite, and vectors must stay below
    `max_norm` by `grid.allowance`, which covers the rounding of sums on the grid: a step does not check private values.
    """

    @property
    def max_norm(self) -> float:
        """The clipping norm C."""
        ...

    @property
    def sums_over(self) -> Drawn:
        """The kind of unit that each vector belongs to."""
        ...

    def sensitivity(self, adjacency: str) -> float:
        """The L2 distance by which one unit can move the sum, over all vectors that it contributes to."""
        ...

    def zeros(self) -> dict[str, Tensor]:
        """The sum over no units."""
        ...

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The sum over the units of a micro-batch."""
        ...


@dataclass(frozen=True, kw_only=True)
class PrivateStep:
    """The private gradient of one step (De 2022, equation 4):

        (1 / (B C)) * [ sum_i clip_C( (1/K) sum_k grad loss(x_ik, y_i) )  +  sigma C xi ],   xi ~ N(0, I)

    Args:
        plan: B (expected batch size, a public constant), C, sigma and the number of steps.
        gradient: the clipped sum over the examples of a micro-batch.
        noise: drawn once per step.
        divisor: a public constant that the noisy sum is divided by; B C by default.
        workers: the processes that share the step's micro-batches (`Workers.deal`).

    **Guarantee.** The result of a call is one release of `plan`, with the plan's unit and adjacency. The sum's vectors
    belong to the units that the plan draws (`sums_over`), and one unit moves the sum by at most
    `gradient.sensitivity(plan.adjacency)`, the sensitivity in the plan's theorem. The noise is the plan's, scaled by C.
    All of this is checked here. Everything that depends on private data passes through `gradient` and gets noise before
    it leaves. The divisor is public. A step after the plan's last is refused. The caller must draw the participants
    with a sampler built from `plan.participation`, and call each step once, or again with the same participants.
    """

    plan: PrivacyPlan
    gradient: Query
    noise: Noise
    divisor: float | None = None
    workers: Workers = ALONE

    def __post_init__(self) -> None:
        bound, wanted = self.gradient.sensitivity(self.plan.adjacency), self.plan.theorem.sensitivity(self.plan)
        size = self.plan.expected_batch_size
        if size > MOST_EXAMPLES:
            raise SfumatoError(
                f"the plan's expected batch size is {size}, but a sum holds at most {MOST_EXAMPLES} examples",
                "plan smaller batches",
            )
        if self.gradient.max_norm != self.plan.max_norm:
            raise SfumatoError(
                f"the gradient clips to {self.gradient.max_norm}, but the plan says max_norm {self.plan.max_norm}",
                "build ClippedGradient with max_norm=plan.max_norm",
            )
        if self.gradient.sums_over != self.plan.unit.drawn:
            raise SfumatoError(
                f"the gradient sums over {self.gradient.sums_over}, but the plan's unit is {self.plan.unit}, which "
                f"needs a sum over {self.plan.unit.drawn}",
                f"give a gradient that sums over {self.plan.unit.drawn}, or another plan",
            )
        if bound != wanted * self.plan.max_norm:
            raise SfumatoError(
                f"the gradient's sensitivity for one {self.plan.unit.name} is {bound}, but the plan's theorem assumes "
                f"{wanted} times max_norm {self.plan.max_norm}",
                "give a gradient of the sensitivity that the plan assumes, or another plan",
            )
        self._check_clipping()
        divisor = size * self.plan.max_norm if self.divisor is None else self.divisor
        object.__setattr__(self, "divisor", positive(divisor=divisor, remedy="give a public constant"))

    def _check_clipping(self) -> None:
        """Refuse adaptive clipping, and noise whose scale or mechanism differs from the plan's."""
        if isinstance(self.plan.clipping, QuantileClipping):
            raise SfumatoError(
                "the plan's clipping norm is adaptive, but this step has a fixed one", "plan with clipping=Fixed(...)"
            )
        if self.noise.max_norm != self.plan.max_norm or self.noise.mechanism != self.plan.mechanism:
            raise SfumatoError(
                f"the noise is {self.noise.mechanism} for max_norm {self.noise.max_norm}, but the plan needs "
                f"{self.plan.mechanism} for max_norm {self.plan.max_norm}",
                "build Noise with plan.mechanism and max_norm=plan.max_norm",
            )

    @overload
    def __call__(self, step: int, micro_batches: Iterable[tuple[Any, ...]]) -> dict[str, Tensor]: ...
    @overload
    def __call__(
        self, step: int, micro_batches: Iterable[tuple[Any, ...]], state: NoiseState
    ) -> tuple[dict[str, Tensor], NoiseState]: ...
    def __call__(self, step, micro_batches, state=None):
        """Returns the private gradient, {parameter: float32 tensor}; with `state`, also the next noise state.

        Args:
            step: counted from 0.
            micro_batches: the arguments of `gradient` for each micro-batch: inputs (b, ...) or (b, K, ...),
                targets (b, ...) and optionally keys (b, 4) and weights (b,), 0 for padding. An empty batch has no
                micro-batches; its release is noise alone.
            state: the noise state, as for `Noise.add`.
        """
        self._refuse_beyond(step)
        zeros, done = self.gradient.zeros(), 0
        noise = self.noise.prepare(zeros, step, state, share=self.workers.share)
        total = GridSum(zeros, max_norm=self.gradient.max_norm)
        for found in delay_by_one(self.gradient(*micro_batch) for micro_batch in micro_batches):
            total.add(found.gradients)
            done += 1
        self.workers.reduce_scatter(total, step, done)
        noisy, following = noise.add_to(self.noise.prepare_sum(total))
        assert self.divisor is not None
        private = {name: value / self.divisor for name, value in self.workers.all_gather(noisy).items()}
        return private if state is None else (private, following)

    def skip_lost(self, step: int, state: NoiseState) -> NoiseState:
        """The noise state after a lost step, which was paid for; nothing is computed or released."""
        self._refuse_beyond(step)
        zeros = self.gradient.zeros()
        if not (state.tensors or self.noise.mechanism.buffers(step + 1)):
            return NoiseState(step=step + 1)
        return self.noise.prepare(zeros, step, state, share=self.workers.share).add_to(zeros)[1]

    def _refuse_beyond(self, step: int) -> None:
        within(0, self.plan.steps - 1, step=step, remedy="plan more steps before the run begins")


@dataclass(eq=False, kw_only=True)
class PrivateTrainingSteps:
    """The private steps of a run: draws the participants, prepares their inputs and takes the step.

    Args:
        step, sampler: of one plan and one key.
        inputs: gives the participants as the arguments of the gradient, in micro-batches.
        key: the run's key.
        excluded: bool (N,), records that are drawn but contribute nothing, since they equal a public example.

    **Guarantee.** Participants are drawn by the plan's own rule. An excluded record is drawn like any other one.
    """

    step: PrivateStep
    sampler: Sampler
    inputs: Any
    key: RunKey
    performance: Performance
    excluded: np.ndarray | None = field(default=None, repr=False)

    def __call__(self, step: int, state: NoiseState) -> tuple[dict[str, Tensor], NoiseState]:
        """Returns the private gradient of a step and the next noise state."""
        participants = self.sampler.draw(step)
        if self.excluded is not None:
            participants = (np.cumsum(~self.excluded) - 1)[participants[~self.excluded[participants]]]
        with _devices.compute_mode(self.performance.device, self.performance.precision):
            return self.step(step, self.inputs.micro_batches(self.key, step, participants, self.step.workers), state)

    def skip_lost(self, step: int, state: NoiseState) -> NoiseState:
        """The noise state after a lost step, which was paid for."""
        return self.step.skip_lost(step, state)

    def halve(self) -> int | None:
        """Halves the micro-batch size after running out of memory. Returns the new size, or None if it was 1."""
        return self.inputs.halve()

    def figures(self, step: int) -> dict[str, Any]:
        """Epsilon after so many steps."""
        return {"epsilon": self.step.plan.epsilon(steps=step)}


def delay_by_one(sums: Iterable[Any]) -> Iterator[Any]:
    """Yields the same sums, those still queued on a device one iteration late.

    Reading a queued sum waits for the device, which should have the next one to compute meanwhile.
    """
    before: list[Any] = []
    for found in sums:
        if isinstance(found, QueuedSum):
            before.append(found)
            if len(before) > 1:
                yield before.pop(0)
        else:
            yield found
    yield from before


def descend(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, Tensor], gradient: Mapping[str, Tensor | None]
) -> None:
    """Takes one optimizer step with this gradient. For a private gradient this is post-processing."""
    for name, parameter in parameters.items():
        value = gradient[name]
        parameter.grad = None if value is None else value.to(parameter.dtype)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


COUNT = "vectors within the norm"
NORM = "norm of the next step"
FARTHEST = 1e6
"""The clipping norm stays within this factor of the initial one, in both directions."""


def following_norm(clipping: QuantileClipping, norm: float, share: float) -> float:
    """C of the next step, from that of this one and the share of vectors within it."""
    after = clipping.next_norm(norm, share)
    return min(max(after, clipping.max_norm / FARTHEST), clipping.max_norm * FARTHEST)


class AdaptiveQuery(Query, Protocol):
    """A query whose clipping norm may change from step to step."""

    def with_max_norm(self, max_norm: float) -> Query:
        """The same query with another C; its results also have `within`, the centred count."""
        ...


@dataclass(frozen=True, kw_only=True)
class AdaptiveStep(PrivateStep):
    """A private step with adaptive clipping norm C_t; the count that C_t follows is one more coordinate of the release:

        y_t = ( sum_i d_i / C_t,  (z / sigma_b) sum_i (1[|d_i| <= C_t] - 1/2) )  +  z xi,   |d_i| <= C_t
        the gradient is C_t y_t / divisor;  b = (sigma_b / z) y_t[count] / m + 1/2;  C_{t+1} = C_t exp(-eta (b - gamma))

    Args:
        plan: a plan whose clipping is a `QuantileClipping`.
        gradient: an `AdaptiveQuery`.
        noise: of the plan's mechanism, with `max_norm` 1: sums are in units of C.
        divisor: m, the declared number of vectors in a step.

    **Guarantee.** The result of a call, including the next step's norm in the state, is one release of `plan` and its
    post-processing. A vector and its indicator together have the norm that `Quantile.joint_noise` accounts for, so the
    plan's theorem covers both, for every mechanism. C_t is a function of earlier releases, and correlated noise is
    added to sums in units of the C of their own step. Otherwise as for `PrivateStep`.
    """

    gradient: AdaptiveQuery

    def _check_clipping(self) -> None:
        if not isinstance(self.plan.clipping, QuantileClipping) or self.divisor is None:
            raise SfumatoError(
                f"an adaptive step needs clipping=Quantile(...) and a divisor, got clipping {self.plan.clipping} and "
                f"divisor {self.divisor}",
                "give a plan with clipping=Quantile(...), and the declared number of vectors as divisor",
            )
        if self.noise.max_norm != 1 or self.noise.mechanism != self.plan.mechanism:
            raise SfumatoError(
                f"the noise is {self.noise.mechanism} for max_norm {self.noise.max_norm}, but the plan needs "
                f"{self.plan.mechanism} for sums in units of the norm",
                "build Noise with plan.mechanism and max_norm=1",
            )

    def max_norm(self, state: NoiseState) -> float:
        """The clipping norm C_t of the state's step. Public: a function of earlier releases."""
        return float(state.tensors[NORM]) if NORM in state.tensors else self.plan.max_norm

    def skip_lost(self, step: int, state: NoiseState) -> NoiseState:
        """As for `PrivateStep`. The norm stays the same: it follows releases, and this step has none."""
        self._refuse_beyond(step)
        norm, remembered = self.max_norm(state), {name: one for name, one in state.tensors.items() if name != NORM}
        zeros = {**self.gradient.zeros(), COUNT: torch.zeros(1, dtype=torch.float64)}
        before = NoiseState(step=state.step, tensors=remembered)
        following = self.noise.prepare(zeros, step, before, share=self.workers.share).add_to(zeros)[1]
        following.tensors[NORM] = torch.tensor(norm, dtype=torch.float64)
        return following

    def __call__(  # type: ignore[override]
        self, step: int, micro_batches: Iterable[tuple[Any, ...]], state: NoiseState
    ) -> tuple[dict[str, Tensor], NoiseState]:
        """Returns the private gradient and the next state: of the noise, with the next step's clipping norm."""
        self._refuse_beyond(step)
        clipping, divisor = self.plan.clipping, self.divisor
        assert isinstance(clipping, QuantileClipping)
        assert divisor is not None
        bound = self.max_norm(state)
        query, count, done = self.gradient.with_max_norm(bound), 0.0, 0
        total = GridSum(query.zeros(), max_norm=bound)
        for micro_batch in micro_batches:
            found = query(*micro_batch)
            total.add(found.gradients)
            count, done = count + found.within, done + 1
        self.workers.reduce_scatter(total, step, done)
        count = self.workers.all_reduce(count)
        scale = self.plan.noise_multiplier / clipping.noise_of_count
        sums = {name: value / bound for name, value in total.value().items()}
        sums[COUNT] = torch.tensor([scale * count], dtype=torch.float64)
        remembered = {name: value for name, value in state.tensors.items() if name != NORM}
        coming = self.noise.prepare(
            sums, step, NoiseState(step=state.step, tensors=remembered), share=self.workers.share
        )
        noisy, following = coming.add_to(sums)
        noisy = self.workers.all_gather(noisy)
        share = clipping.noisy_fraction(float(noisy.pop(COUNT)) / scale, divisor)
        following.tensors[NORM] = torch.tensor(following_norm(clipping, bound, share), dtype=torch.float64)
        return {name: value * (bound / divisor) for name, value in noisy.items()}, following
