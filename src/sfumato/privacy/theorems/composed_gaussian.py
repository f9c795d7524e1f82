"""Steps that together are one Gaussian release: independent noise without random sampling."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

from sfumato.privacy.loss import Part, Repeats
from sfumato.privacy.mechanism import Gaussian
from sfumato.privacy.participation import FixedOrder, FullBatch
from sfumato.privacy.theorems.poisson_gaussian import SampledGaussians
from sfumato.privacy.theorems.theorem import Plan, Theorem


class OneGaussianTheorem(Theorem):
    """One Gaussian release of noise sigma over sensitivity S, for rules that fix each unit's steps in advance."""

    participations = (FullBatch, FixedOrder)
    tight = "exact Gaussian composition"

    @abstractmethod
    def squared_sensitivity(self, plan: Plan, steps: int) -> float:
        """S^2 of the first `steps` releases: the squared distance, in units of C, by which one vector per step moves
        the quantity that receives the noise."""

    def part(self, plan: Plan, steps: int) -> OneGaussian:
        """The Gaussian mechanism of noise sigma / S."""
        return OneGaussian(precision=self.squared_sensitivity(plan, steps) / self.relative_noise(plan) ** 2)

    def equivalent_steps(self, plan: Plan, mu: float) -> float:
        """S^2 / sigma^2 = mu^2, if S^2 keeps growing as it does until every unit has taken part once."""
        once = gap(plan)
        return once * mu**2 * self.relative_noise(plan) ** 2 / self.squared_sensitivity(plan, once)


class ComposedGaussian(OneGaussianTheorem):
    """Gaussian releases without sampling: k releases of noise sigma are one of noise sigma / sqrt(k)."""

    mechanisms = (Gaussian,)
    name = "composed Gaussian mechanism without sampling"
    citation = "Balle and Wang 2018, theorem 8; Dong, Roth and Su 2022 (composition); Mironov 2017 (RDP)"

    def squared_sensitivity(self, plan: Plan, steps: int) -> int:
        """k: the most steps, among the first `steps`, in which one unit takes part."""
        return -(-steps // gap(plan))


def gap(plan: Plan) -> int:
    """The number of steps between two participations of a unit, under a rule that fixes them in advance."""
    participation = plan.participation
    assert isinstance(participation, (FullBatch, FixedOrder))
    return participation.gap(plan.population)


@dataclass(frozen=True, kw_only=True)
class OneGaussian(Part):
    """T_i Gaussian releases of noise s_i over their sensitivity, merged into one release.

    Args:
        precision: 1 / s^2 = sum_i T_i / s_i^2.
    """

    precision: float

    def and_then(self, other: Part) -> Part | None:
        """Merge exactly with another Gaussian release without sampling."""
        return OneGaussian(precision=self.precision + other.precision) if isinstance(other, OneGaussian) else None

    @property
    def sigma(self) -> float:
        """s."""
        return 1 / math.sqrt(self.precision)

    def epsilon(self, delta: float) -> float:
        """Epsilon at delta, exactly (Balle and Wang 2018, theorem 8)."""
        import dp_accounting

        return float(dp_accounting.get_epsilon_gaussian(self.sigma, delta))

    def delta(self, epsilon: float) -> float:
        """Delta at epsilon, exactly: Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu) with mu = 1 / s."""
        from scipy.special import log_ndtr

        half, shift = 1 / (2 * self.sigma), epsilon * self.sigma
        above, below = float(log_ndtr(half - shift)), float(log_ndtr(-half - shift))
        return math.exp(above) * -math.expm1(min(epsilon + below - above, 0.0))

    @property
    def coarsening(self) -> float:
        """The coarsening of one release that is sampled with probability 1."""
        return self._sampled.coarsening

    def repeats(self, width: float) -> tuple[Repeats]:
        """One release, to compose with others."""
        return self._sampled.repeats(width)

    def event(self) -> Any:
        """dp-accounting's event."""
        import dp_accounting

        return dp_accounting.GaussianDpEvent(self.sigma)

    @property
    def _sampled(self) -> SampledGaussians:
        return SampledGaussians(sigma=self.sigma, probability=1.0, steps=1)
