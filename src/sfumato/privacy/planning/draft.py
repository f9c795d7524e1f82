"""The calibration of a plan: the number that is left out follows from the others and a budget."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

from sfumato._checks import SfumatoError, positive_integer
from sfumato.privacy import calibration
from sfumato.privacy.calibration import MAX_STEPS
from sfumato.privacy.clipping import Clipping, Quantile
from sfumato.privacy.loss import FINE_GRID
from sfumato.privacy.mechanism import Mechanism
from sfumato.privacy.participation import Participation, participation_for
from sfumato.privacy.unit import Adjacency, Unit

if TYPE_CHECKING:
    from sfumato.privacy.planning.requested import Optimal

FIRST_STEPS = 1000
"""Noise that is the best for so many steps tells about how many a budget allows of noise that is the best for these."""


class Planned(Protocol):
    """What the calibration needs of a plan."""

    @property
    def participation(self) -> Participation: ...

    def epsilon(self, *, grid: float = FINE_GRID) -> float: ...

    def with_noise(self, noise_multiplier: float) -> Self: ...

    def most_steps(self, epsilon: float) -> int: ...


P = TypeVar("P", bound=Planned)


@dataclass(frozen=True, kw_only=True)
class Draft(Generic[P]):
    """A plan, of which one of batch size, steps and noise multiplier may be missing.

    Args:
        make: the plan's class; the other arguments are those of `PrivacyPlan.calibrate`.
    """

    make: Callable[..., P]
    examples: int
    delta: float
    batch_size: int | None
    steps: int | None
    noise_multiplier: float | None
    clipping: Clipping
    unit: Unit
    participation: Participation | None
    mechanism: Mechanism | Optimal
    adjacency: Adjacency

    def plan(self, **found: Any) -> P:
        """The plan, with the missing number among `found`."""
        if found:
            return replace(self, **found).plan()
        who = participation_for(population=self.examples, batch_size=self.batch_size, rule=self.participation)  # type: ignore[arg-type]
        steps = positive_integer("steps", self.steps, remedy="give the number of training steps")
        noise = self.mechanism.adapted(who, self.examples, steps)
        return self.make(
            population=self.examples,
            participation=who,
            mechanism=replace(noise, noise_multiplier=self.noise_multiplier),
            steps=steps,
            delta=self.delta,
            clipping=self.clipping.adapted(who.expected_batch_size(self.examples)),
            unit=self.unit,
            adjacency=self.adjacency,
        )

    def within(self, epsilon: float) -> P:
        """The plan whose missing number is the best that costs at most epsilon."""
        if self.noise_multiplier is None:
            return self._least_noise(epsilon)
        return self._most_steps(epsilon) if self.steps is None else self._largest_batch(epsilon)

    def _least_noise(self, epsilon: float) -> P:
        plan = self.plan(noise_multiplier=1.0)
        least = calibration.least(
            lambda sigma, grid: plan.with_noise(sigma).epsilon(grid=grid),
            epsilon,
            what=f"noise multiplier below 1e7 reaches epsilon {epsilon:g} at delta {self.delta:g}",
            remedy="give a larger epsilon or delta, or fewer steps"
            + (", or more count_noise" if isinstance(self.clipping, Quantile) else ""),
        )
        return plan.with_noise(least)

    def _most_steps(self, epsilon: float) -> P:
        one = self.plan(steps=1)
        limit = min(one.participation.most_steps(self.examples) or MAX_STEPS, MAX_STEPS)
        fixed = isinstance(self.mechanism, Mechanism)
        most = (one if fixed else self.plan(steps=min(FIRST_STEPS, limit))).most_steps(epsilon)
        if most and not fixed:  # the noise is another one for each number of steps
            turn = one.participation.gap(self.examples)
            ends = None if turn is None else partial(calibration.ends_of_turns, turn=turn)
            cost = self._cost_by("steps")
            most = calibration.largest(cost, epsilon, limit, guess=most, beyond=ends)
        return self.plan(steps=_at_least_one(most, one.epsilon(), epsilon, "step"))

    def _largest_batch(self, epsilon: float) -> P:
        rule, steps = self.participation, self.steps or 1
        limit = self.examples if rule is None else rule.largest_batch(self.examples, steps)

        def whole_rounds(batch: int) -> list[int]:
            turn = self.plan(batch_size=batch).participation.gap(self.examples)
            return (
                [] if turn is None else calibration.batches_of_whole_rounds(turn, steps=steps, population=self.examples)
            )

        cost = self._cost_by("batch_size")
        most = calibration.largest(cost, epsilon, limit, math.sqrt(self.examples), beyond=whole_rounds)
        return self.plan(batch_size=_at_least_one(most, cost(1), epsilon, "example in a batch"))

    def _cost_by(self, number: str) -> Callable[[int], float]:
        """Epsilon of the plan as a function of the missing number."""
        return lambda value: self.plan(**{number: value}).epsilon()


def _at_least_one(most: int, cost_of_one: float, epsilon: float, what: str) -> int:
    if most < 1:
        raise SfumatoError(
            f"epsilon {epsilon:g} is already exceeded by one {what} ({cost_of_one:.3g})",
            "give more noise or a larger epsilon",
        )
    return most
