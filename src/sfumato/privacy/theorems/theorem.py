"""What a theorem is: for which plans it speaks, how far one unit can move a step's sum, and what the steps cost."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

from sfumato._checks import SfumatoError
from sfumato.privacy.loss import Loss
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


class Theorem(ABC):
    """One row of the table of theorems. Its own class fills in all of this and carries its own mathematics.

    Args:
        unit, adjacency, participation, mechanism: the combination that it is about.
        name: what a statement calls it.
        citation: where it is proven.
        tight: how the default accountant evaluates it.
        sensitivity: by how much one unit can move a step's sum, in L2 norm and in units of the clipping norm C.
        by_prefix: whether any first steps of a run have a loss of their own, without those that follow.
    """

    unit: type[Unit]
    adjacency: Adjacency
    participation: type[Participation]
    mechanism: type[Mechanism]
    name: str
    citation: str
    tight: str
    sensitivity: float
    by_prefix: bool

    def speaks_for(self, plan: Plan) -> bool:
        """Whether it is about this combination."""
        theirs = (type(plan.unit), plan.adjacency, type(plan.participation), type(plan.mechanism))
        return theirs == (self.unit, self.adjacency, self.participation, self.mechanism)

    @abstractmethod
    def loss(self, plan: Plan, steps: int) -> Loss:
        """What the first `steps` releases of the plan cost.

        **Guarantee.** For the plan's unit and adjacency, if each release is the sum of the participants' vectors, none
        of norm above C, plus the mechanism's noise (standard deviation `noise_multiplier * C`), and no unit moves the
        sum by more than `sensitivity * C`.
        """

    @abstractmethod
    def steps_like(self, plan: Plan, mu: float) -> float:
        """About how many steps cost as much as one Gaussian release of sensitivity mu and standard deviation 1."""

    def relative_noise(self, plan: Plan) -> float:
        """The noise's standard deviation over the sensitivity, where the accountants compute: beyond, they answer 0."""
        sigma = plan.mechanism.noise_multiplier
        if not LEAST_NOISE <= sigma <= MOST_NOISE:
            raise SfumatoError(
                f"noise_multiplier must lie between {LEAST_NOISE:g} and {MOST_NOISE:g}, got {sigma!r}",
                "give the noise's standard deviation over the clipping norm",
            )
        return sigma / self.sensitivity
