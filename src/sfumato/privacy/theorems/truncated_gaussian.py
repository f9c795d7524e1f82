"""Gaussian steps under Poisson sampling that is cut at a largest size."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from sfumato.privacy.mechanism import Gaussian
from sfumato.privacy.participation import TruncatedPoisson
from sfumato.privacy.theorems.poisson_gaussian import SampledGaussians, spread
from sfumato.privacy.theorems.theorem import Plan, Repeated, Theorem


class TruncatedGaussian(Theorem):
    """The Gaussian mechanism under truncated Poisson sampling, composed over the steps."""

    participations, mechanisms = (TruncatedPoisson,), (Gaussian,)
    name = "Gaussian mechanism under truncated Poisson sampling"
    citation = (
        "arXiv 2508.15089 (dominating pair: a mixture of a step that is cut, in which another may take the unit's "
        "place, and one that is not); Doroshenko et al. 2022 (privacy loss distributions, pessimistic connect-the-dots)"
    )
    tight = "privacy loss distribution (PLD)"

    def part(self, plan: Plan, steps: int) -> TruncatedGaussians:
        """The self-composition of one step's privacy loss distribution."""
        rule = plan.participation
        assert isinstance(rule, TruncatedPoisson)
        return TruncatedGaussians(
            sigma=self.relative_noise(plan),
            probability=rule.probability(plan.population),
            largest=rule.largest,
            population=plan.population,
            steps=steps,
        )

    def steps_like(self, plan: Plan, mu: float) -> float:
        """As for Poisson sampling without the cut."""
        return self.part(plan, 1).uncut.repeats_like(mu)


@dataclass(frozen=True, kw_only=True)
class TruncatedGaussians(Repeated):
    """`steps` Gaussian releases of noise `sigma` over the sensitivity, each of at most `largest` of those drawn."""

    sigma: float
    probability: float
    largest: int
    population: int

    @property
    def uncut(self) -> SampledGaussians:
        """The same without the cut."""
        return SampledGaussians(sigma=self.sigma, probability=self.probability, steps=self.steps)

    @property
    def coarsening(self) -> float:
        """As without the cut, or as wide as a step needs in which another takes the unit's place: it moves by 2."""
        return max(self.uncut.coarsening, spread(self.sigma / 2) / 5)

    def of_one(self, width: float) -> Any:
        """The privacy loss distribution of one step."""
        return distribution_of_one(self.sigma, self.probability, self.largest, self.population, width)


@functools.lru_cache(maxsize=8)
def distribution_of_one(sigma: float, probability: float, largest: int, population: int, width: float) -> Any:
    """The privacy loss distribution of one step: slow to build, so kept for other numbers of steps."""
    from dp_accounting.pld import privacy_loss_distribution
    from dp_accounting.privacy_accountant import NeighboringRelation

    return privacy_loss_distribution.from_truncated_subsampled_gaussian_mechanism(
        dataset_size=population,
        sampling_probability=probability,
        truncated_batch_size=largest,
        noise_multiplier=sigma,
        value_discretization_interval=width,
        neighboring_relation=NeighboringRelation.REPLACE_SPECIAL,
    )
