"""The interface of a theorem: the plans it covers, how far one unit moves a step's sum, and the cost of the steps."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Protocol

from sfumato._checks import within
from sfumato.privacy.clipping import Clipping
from sfumato.privacy.loss import Loss, Part, Repeats
from sfumato.privacy.mechanism import Mechanism
from sfumato.privacy.participation import Participation
from sfumato.privacy.unit import Adjacency, Unit

LEAST_NOISE, MOST_NOISE = 1e-3, 1e9
"""The range of noise multipliers in which the accountants compute. Outside it they overflow."""


class Plan(Protocol):
    """The fields of a `PrivacyPlan` that theorems read."""

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
class RepeatedSteps(Part):
    """Steps that are identical releases, as a part of a loss."""

    steps: int

    def and_then(self, other: Part) -> Part | None:
        if isinstance(other, type(self)) and replace(other, steps=self.steps) == self:
            return replace(self, steps=self.steps + other.steps)
        return None

    @abstractmethod
    def step_distribution(self, width: float) -> Any:
        """The privacy loss distribution of one step."""

    def repeats(self, width: float) -> tuple[Repeats]:
        return ([(_step_distribution(replace(self, steps=1), width), self.steps)],)


@functools.lru_cache(maxsize=24)
def _step_distribution(steps: RepeatedSteps, width: float) -> Any:
    """Cached for other numbers of steps, because it is slow to build."""
    return steps.step_distribution(width)


class Theorem(ABC):
    """One row of the table of theorems. Each subclass fills in these attributes and holds its own mathematics.

    Args:
        participations, mechanisms: the rules and mechanisms covered, in every combination, for units that are sampled
            or ordered as a whole. The adjacencies are those of the rule (`Participation.adjacencies`): if who else
            takes part does not depend on one unit, the sums with and without it differ by what the unit itself
            contributes, just as they do if its contribution is replaced by zero.
        name: the name in statements.
        citation: where it is proven.
        tight: how the default accountant evaluates it.
    """

    participations: tuple[type[Participation], ...]
    mechanisms: tuple[type[Mechanism], ...]
    name: str
    citation: str
    tight: str

    def sensitivity(self, plan: Plan) -> float:
        """The largest L2 distance, in units of C, by which one unit moves a step's sum."""
        return plan.unit.sensitivity

    def check(self, plan: Plan) -> None:
        """Refuse plans of this combination that the theorem does not cover."""
        self.relative_noise(plan)

    def loss(self, plan: Plan, steps: int) -> Loss:
        """The privacy loss of the first `steps` releases of the plan.

        **Guarantee.** For the plan's unit and adjacency, if each release is the sum of the participants' vectors, each
        of norm at most C, plus the mechanism's noise for that step (made of independent numbers of standard deviation
        `noise_multiplier * C`), and no unit moves the sum by more than `sensitivity(plan) * C`. With adaptive clipping
        each vector has one more coordinate, for the count, and the noise multiplier is the joint one
        (`QuantileClipping`).
        """
        return Loss(unit=plan.unit, adjacency=plan.adjacency, parts=(self.part(plan, steps),))

    @abstractmethod
    def part(self, plan: Plan, steps: int) -> Part:
        """The same loss as a single part."""

    @abstractmethod
    def equivalent_steps(self, plan: Plan, mu: float) -> float:
        """Roughly the number of steps that cost as much as one Gaussian release of sensitivity mu and noise 1."""

    def relative_noise(self, plan: Plan) -> float:
        """The joint noise's standard deviation over the sensitivity. Refuses a noise multiplier outside the range of
        the accountants, which return 0 there."""
        sigma = plan.mechanism.noise_multiplier
        remedy = "give the noise's standard deviation over the clipping norm"
        within(LEAST_NOISE, MOST_NOISE, noise_multiplier=sigma, remedy=remedy)
        return plan.clipping.joint_noise(sigma) / self.sensitivity(plan)
