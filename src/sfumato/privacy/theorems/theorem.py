"""What a theorem is: for which plans it speaks, how far one unit can move a step's sum, and what the steps cost."""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Protocol

from sfumato._checks import SfumatoError
from sfumato.privacy.clipping import Clipping
from sfumato.privacy.loss import Loss, Part, Repeats
from sfumato.privacy.mechanism import Mechanism
from sfumato.privacy.participation import Participation
from sfumato.privacy.unit import Adjacency, Unit

LEAST_NOISE, MOST_NOISE = 1e-3, 1e9
"""Between these noise multipliers the accountants compute; beyond them they end in overflows."""


class Plan(Protocol):
    """What theorems read of a `PrivacyPlan`."""

    @property
    def unit(self) -> Unit: ...
    @property
    def adjacency(self) -> Adjacency: ...
    @property
    def population(self) -> int: ...
    @property
    def participation(self) -> Participation: ...
    @property
    def mechanism(self) -> Mechanism: ...
    @property
    def clipping(self) -> Clipping: ...


@dataclass(frozen=True, kw_only=True)
class Repeated(Part):
    """Steps that are releases of one kind, as a part of a loss."""

    steps: int

    def and_then(self, other: Part) -> Part | None:
        """More steps of the same release are more steps."""
        if isinstance(other, type(self)) and replace(other, steps=self.steps) == self:
            return replace(self, steps=self.steps + other.steps)
        return None

    @abstractmethod
    def of_one(self, width: float) -> Any:
        """The privacy loss distribution of one step."""

    def repeats(self, width: float) -> tuple[Repeats]:
        """One step, so many times."""
        return ([(_of_one(replace(self, steps=1), width), self.steps)],)


@functools.lru_cache(maxsize=24)
def _of_one(one: Repeated, width: float) -> Any:
    """Slow to build, so kept for other numbers of steps."""
    return one.of_one(width)


def grid(least: float, most: float, width: float) -> tuple[int, int, Any]:
    """The multiples of the width around these losses: the first and the last by their numbers, and all of them."""
    import numpy as np

    low, high = math.floor(least / width), math.ceil(most / width)
    return low, high, width * np.arange(low, high + 1)


class Theorem(ABC):
    """One row of the table of theorems. Its own class fills in all of this and carries its own mathematics.

    Args:
        participations, mechanisms: the rules and mechanisms that it is about, each with each, for units that coins or
            an order decide about as a whole. The adjacencies are those of the rule (`Participation.adjacencies`): where
            who else takes part does not depend on one unit, the sums with and without it differ by what the unit
            itself moves, as they do where it is replaced by nothing.
        name: what a statement calls it.
        citation: where it is proven.
        tight: how the default accountant evaluates it.
        by_prefix: whether any first steps of a run have a loss of their own, without those that follow.
    """

    participations: tuple[type[Participation], ...]
    mechanisms: tuple[type[Mechanism], ...]
    name: str
    citation: str
    tight: str
    by_prefix: bool = True

    def speaks_for(self, plan: Plan) -> bool:
        """Whether it is about this combination."""
        return (
            type(plan.participation) in self.participations
            and type(plan.mechanism) in self.mechanisms
            and self.covers(plan.unit)
        )

    def covers(self, unit: Unit) -> bool:
        """Whether it is about units like this: by default those of which a step's sum holds one vector at most."""
        return unit.vectors == 1

    def sensitivity(self, plan: Plan) -> float:
        """By how much one unit moves a step's sum through each vector it has a part in, in L2 norm and in C."""
        return plan.unit.moves

    def check(self, plan: Plan) -> None:
        """Refuse the plans of its combination that it does not cover."""
        self.relative_noise(plan)

    def loss(self, plan: Plan, steps: int) -> Loss:
        """What the first `steps` releases of the plan cost.

        **Guarantee.** For the plan's unit and adjacency, if each release is the sum of the participants' vectors, none
        of norm above C, plus the mechanism's noise of that step (made of independent numbers of standard deviation
        `noise_multiplier * C`), and no unit moves the sum by more than `sensitivity(plan) * C` for each of the
        `unit.vectors` that it may have in it. With adaptive clipping a vector has one coordinate more, for the count,
        and the noise multiplier is the joint one (`Quantile`).
        """
        return Loss(unit=plan.unit, adjacency=plan.adjacency, parts=(self.part(plan, steps),))

    @abstractmethod
    def part(self, plan: Plan, steps: int) -> Part:
        """The same as one part of a loss."""

    @abstractmethod
    def steps_like(self, plan: Plan, mu: float) -> float:
        """About how many steps cost as much as one Gaussian release of sensitivity mu and standard deviation 1."""

    def relative_noise(self, plan: Plan) -> float:
        """The joint noise's standard deviation over the sensitivity, where the accountants compute: beyond, they answer
        0."""
        sigma = plan.mechanism.noise_multiplier
        if not LEAST_NOISE <= sigma <= MOST_NOISE:
            raise SfumatoError(
                f"noise_multiplier must lie between {LEAST_NOISE:g} and {MOST_NOISE:g}, got {sigma!r}",
                "give the noise's standard deviation over the clipping norm",
            )
        return plan.clipping.joint_noise(sigma) / self.sensitivity(plan)
