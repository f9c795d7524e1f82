"""One private step: clip, sum, noise, divide. The page to read when the question is whether a run is private.

The accounting, the sampler, the noise and the sensitivity all come from one `PrivacyPlan`. This is the only place where
the plan, the clipped gradient and the noise meet.

An adaptive step is one whose clipping norm follows a quantile of the norms that it clips (Andrew et al. 2021).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, overload

import torch
from torch import Tensor

from sfumato._checks import SfumatoError, positive
from sfumato.gradients import GridSum
from sfumato.gradients.grid import MOST_EXAMPLES
from sfumato.gradients.sums import QueuedSum
from sfumato.privacy import PrivacyPlan, Quantile
from sfumato.privacy.unit import Drawn
from sfumato.randomness import Noise, NoiseState
from sfumato.training.workers import ALONE, Workers


class Query(Protocol):
    """Vectors, none longer than `max_norm`, summed: what a step asks of the private data.

    `ClippedGradient` is one. A call gets all that a vector is made of (an example, all of a user's that take part, a
    client), never a part of it, and its `gradients` are the sum by parameter name; norms and losses stay inside. No
    number of them may be other than finite, and vectors stay below `max_norm` by `grid.allowance`, the rounding of sums
    on the grid: a step does not look at private values to check.
    """

    @property
    def max_norm(self) -> float:
        """C."""
        ...

    @property
    def sums_over(self) -> Drawn:
        """What each of its vectors belongs to."""
        ...

    def sensitivity(self, adjacency: str) -> float:
        """By how much one unit can move the sum in L2 norm, through each vector that it has a part in."""
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
        noise: one draw for each step.
        divisor: what the noisy sum is divided by, a public constant; B C by default.
        workers: who take the step together, each with its own of the micro-batches (`Workers.deal`).
        added: of a step, what is added to its sum by name, in units of C: a public constant, such as canaries' parts.

    **Guarantee.** What a call returns is one release of `plan`: unit and adjacency are the plan's; the sum's
    vectors belong to what the plan says (`sums_over`), and one unit moves it by `gradient.sensitivity(plan.adjacency)`,
    which is what the plan's theorem is about; the noise is the plan's, scaled by C (all checked here); everything that
    depends on private data passes through `gradient` and gets the noise before it leaves. The divisor is public, and
    so is what is `added`, which no record moves. A step beyond the plan's last is refused. The caller must take the
    participants from a sampler built from `plan.participation` and call each step once, or again with the same
    participants.
    """

    plan: PrivacyPlan
    gradient: Query
    noise: Noise
    divisor: float | None = None
    workers: Workers = ALONE
    added: Callable[[int], Mapping[str, Tensor]] | None = None

    def __post_init__(self) -> None:
        bound, wanted = self.gradient.sensitivity(self.plan.adjacency), self.plan.theorem.sensitivity(self.plan)
        size = self.plan.expected_batch_size
        if size > MOST_EXAMPLES:
            raise SfumatoError(
                f"the plan's batches have {size} examples, and a sum holds at most {MOST_EXAMPLES}",
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
                "give a gradient whose vectors belong to what the plan says, or another plan",
            )
        if bound != wanted * self.plan.max_norm:
            raise SfumatoError(
                f"one {self.plan.unit.name} moves the gradient's sum by up to {bound}, and the plan's theorem is about "
                f"{wanted} times max_norm {self.plan.max_norm}",
                "give a gradient of that sensitivity, or a plan whose theorem speaks of it",
            )
        self._check_clipping()
        if self.divisor is not None:
            positive("divisor", self.divisor, remedy="give a public constant")

    def _check_clipping(self) -> None:
        """Refuse a plan of another kind of clipping, and noise of another scale or mechanism than the plan's."""
        if isinstance(self.plan.clipping, Quantile):
            raise SfumatoError(
                "the plan's clipping norm follows a quantile of the norms, and this step has one for the whole run",
                "plan with clipping=Fixed(...)",
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
        """The private gradient: {parameter: float32 tensor}; and the noise's next state, where one is given.

        Args:
            step: 0 for the first.
            micro_batches: pieces of the participants, each the arguments of `gradient`: inputs (b, ...) or (b, K, ...),
                targets (b, ...) and, if wanted, keys (b, 4) and weights (b,), 0 for padding; none for an empty batch,
                which is a release like any other: noise alone.
            state: of the noise, as `Noise.add` takes it.
        """
        self._refuse_beyond(step)
        zeros, done = self.gradient.zeros(), 0
        noise = self.noise.ahead(zeros, step, state, share=self.workers.share)
        total = self._of_nobody(zeros, step, self.plan.max_norm)
        for found in one_behind(self.gradient(*micro_batch) for micro_batch in micro_batches):
            total.add(found.gradients)
            done += 1
        self.workers.total(total, step, done)
        noisy, following = noise.added_to(self.noise.taken(total))
        divisor = self.divisor or self.plan.expected_batch_size * self.plan.max_norm
        private = {name: value / divisor for name, value in self.workers.whole(noisy).items()}
        return private if state is None else (private, following)

    def passed(self, step: int, state: NoiseState) -> NoiseState:
        """The noise's state after a step that is paid and lost; nothing of the step is computed or leaves."""
        self._refuse_beyond(step)
        zeros = self.gradient.zeros()
        if not (state.tensors or self.noise.mechanism.buffers(step + 1)):
            return NoiseState(step=step + 1)
        return self.noise.ahead(zeros, step, state, share=self.workers.share).added_to(zeros)[1]

    def _of_nobody(self, zeros: Mapping[str, Tensor], step: int, max_norm: float) -> GridSum:
        """The sum before anybody's vector: on the grid, and of several workers with the leader, what is `added`."""
        total = GridSum(zeros, max_norm=max_norm)
        if self.added is not None and self.workers.is_leader:
            further = {name: (max_norm * value).to(zeros[name].device) for name, value in self.added(step).items()}
            total.add({**zeros, **further})
        return total

    def _refuse_beyond(self, step: int) -> None:
        if not 0 <= step < self.plan.steps:
            raise SfumatoError(
                f"step must lie in 0..{self.plan.steps - 1}, got {step}", "plan more steps before the run begins"
            )


def one_behind(sums: Iterable[Any]) -> Iterator[Any]:
    """The same sums; one that a device still computes comes when the next has been asked for, since to read it is to
    wait for the device, which should have work meanwhile."""
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
    """One step of the optimizer along a gradient; what an optimizer makes of a private one is post-processing."""
    for name, parameter in parameters.items():
        value = gradient[name]
        parameter.grad = None if value is None else value.to(parameter.dtype)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


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
