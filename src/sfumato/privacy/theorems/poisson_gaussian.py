"""Gaussian steps under Poisson sampling."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import Any

from sfumato.privacy.loss import Loss, Part
from sfumato.privacy.mechanism import Gaussian
from sfumato.privacy.participation import Poisson
from sfumato.privacy.theorems.theorem import Plan, Theorem
from sfumato.privacy.unit import Example


class PoissonGaussian(Theorem):
    """The Poisson-subsampled Gaussian mechanism, composed over the steps."""

    unit, adjacency, participation, mechanism = Example, "add-or-remove", Poisson, Gaussian
    name = "Poisson-subsampled Gaussian mechanism"
    citation = (
        "Zhu, Dong and Wang 2022 (dominating pair under add-or-remove); Koskela et al. 2020 and Doroshenko et al. "
        "2022 (privacy loss distributions, pessimistic connect-the-dots); Mironov, Talwar and Zhang 2019 (RDP)"
    )
    tight = "privacy loss distribution (PLD)"
    sensitivity = 1.0
    by_prefix = True

    def loss(self, plan: Plan, steps: int) -> Loss:
        """The self-composition of one step's privacy loss distribution."""
        probability = plan.participation.probability(plan.population)
        part = SampledGaussians(sigma=self.relative_noise(plan), probability=probability, steps=steps)
        return Loss(unit=plan.unit, adjacency=plan.adjacency, parts=(part,))

    def steps_like(self, plan: Plan, mu: float) -> float:
        """The T whose composition tends to the Gaussian mechanism of mu: q^2 T (e^(1/sigma^2) - 1) = mu^2.

        Somewhat too large (Bu, Dong, Long and Su 2020, arXiv 1911.11607).
        """
        probability = plan.participation.probability(plan.population)
        return mu**2 / (probability**2 * math.expm1(1 / self.relative_noise(plan) ** 2))


@dataclass(frozen=True, kw_only=True)
class SampledGaussians:
    """`steps` Gaussian releases of noise `sigma` over the sensitivity, each sampled with this probability."""

    sigma: float
    probability: float
    steps: int

    def and_then(self, other: Part) -> Part | None:
        """More steps of the same release are more steps."""
        if isinstance(other, SampledGaussians) and replace(other, steps=self.steps) == self:
            return replace(self, steps=self.steps + other.steps)
        return None

    @property
    def coarsening(self) -> float:
        """Finer where a step's losses are tiny, wider where they spread far: between a hundred and a million points."""
        typical = self.probability / self.sigma
        spread = 1 / (2 * self.sigma**2) + 10 / self.sigma
        return max(min(1.0, typical / 0.003), spread / 10, math.sqrt(self.steps) * typical / 20)

    def distribution(self, width: float) -> Any:
        """The privacy loss distribution of all steps."""
        one = distribution_of_one(self.sigma, self.probability, width)
        return one if self.steps == 1 else one.self_compose(self.steps)

    def event(self) -> Any:
        """dp-accounting's event of all steps."""
        import dp_accounting

        one = dp_accounting.GaussianDpEvent(self.sigma)
        return dp_accounting.SelfComposedDpEvent(dp_accounting.PoissonSampledDpEvent(self.probability, one), self.steps)


@functools.lru_cache(maxsize=8)
def distribution_of_one(sigma: float, probability: float, width: float) -> Any:
    """The privacy loss distribution of one step: slow to build, so kept for other numbers of steps."""
    from dp_accounting.pld import privacy_loss_distribution
    from dp_accounting.privacy_accountant import NeighboringRelation

    return privacy_loss_distribution.from_gaussian_mechanism(
        sigma,
        sampling_prob=probability,
        value_discretization_interval=width,
        neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
    )
