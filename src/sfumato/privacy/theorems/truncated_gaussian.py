"""Gaussian steps under Poisson sampling that is cut at a largest size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sfumato.privacy.participation import TruncatedPoisson
from sfumato.privacy.theorems.poisson_gaussian import PoissonGaussian, SampledGaussians, spread
from sfumato.privacy.theorems.theorem import Plan


class TruncatedGaussian(PoissonGaussian):
    """The Gaussian mechanism under truncated Poisson sampling, composed over the steps."""

    participations = (TruncatedPoisson,)
    name = "Gaussian mechanism under truncated Poisson sampling"
    citation = (
        "arXiv 2508.15089 (dominating pair: a mixture of a step that is cut, in which another may take the unit's "
        "place, and one that is not); Doroshenko et al. 2022 (privacy loss distributions, pessimistic connect-the-dots)"
    )

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


@dataclass(frozen=True, kw_only=True)
class TruncatedGaussians(SampledGaussians):
    """`steps` Gaussian releases of noise `sigma` over the sensitivity, each of at most `largest` of those drawn.

    About how many cost how much (`repeats_like`) is told without the cut.
    """

    largest: int
    population: int

    @property
    def coarsening(self) -> float:
        """As without the cut, or as wide as a step needs in which another takes the unit's place: it moves by 2."""
        return max(super().coarsening, spread(self.sigma / 2) / 5)

    def event(self) -> None:
        """None: no Renyi divergence of it is known here."""

    def of_one(self, width: float) -> Any:
        """The privacy loss distribution of one step."""
        from dp_accounting.pld import privacy_loss_distribution
        from dp_accounting.privacy_accountant import NeighboringRelation

        return privacy_loss_distribution.from_truncated_subsampled_gaussian_mechanism(
            dataset_size=self.population,
            sampling_probability=self.probability,
            truncated_batch_size=self.largest,
            noise_multiplier=self.sigma,
            value_discretization_interval=width,
            neighboring_relation=NeighboringRelation.REPLACE_SPECIAL,
        )
