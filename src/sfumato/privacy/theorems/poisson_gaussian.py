"""Gaussian steps under Poisson sampling: plain, truncated at a largest size, and by groups that take turns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sfumato._checks import SfumatoError
from sfumato.privacy.mechanism import BandedToeplitz, Gaussian
from sfumato.privacy.participation import CyclicPoisson, Poisson, TruncatedPoisson
from sfumato.privacy.theorems.theorem import Plan, RepeatedSteps, Theorem


class PoissonGaussian(Theorem):
    """The Poisson-subsampled Gaussian mechanism, composed over all steps."""

    participations, mechanisms = (Poisson,), (Gaussian,)
    name = "Poisson-subsampled Gaussian mechanism"
    citation = (
        "Zhu, Dong and Wang 2022 (dominating pair under add-or-remove); Koskela et al. 2020 and Doroshenko et al. "
        "2022 (privacy loss distributions, pessimistic connect-the-dots); Mironov, Talwar and Zhang 2019 (RDP)"
    )
    tight = "privacy loss distribution (PLD)"

    def part(self, plan: Plan, steps: int) -> SampledGaussians:
        probability = plan.participation.probability(plan.population)
        return SampledGaussians(sigma=self.relative_noise(plan), probability=probability, steps=steps)

    def equivalent_steps(self, plan: Plan, mu: float) -> float:
        return self.part(plan, 1).equivalent_steps(mu)


@dataclass(frozen=True, kw_only=True)
class SampledGaussians(RepeatedSteps):
    """`steps` Gaussian releases of noise `sigma` over the sensitivity, each sampled with this probability."""

    has_renyi = True
    sigma: float
    probability: float

    def equivalent_steps(self, mu: float) -> float:
        """The number of steps T whose composition tends to the Gaussian mechanism of mu.

        It solves q^2 T (e^(1/sigma^2) - 1) = mu^2.

        A slight overestimate (Bu, Dong, Long and Su 2020, arXiv 1911.11607).
        """
        return mu**2 / (self.probability**2 * math.expm1(1 / self.sigma**2))

    @property
    def coarsening(self) -> float:
        """Finer if a step's losses are tiny, wider if they spread far: a hundred to a million grid points."""
        typical = self.probability / self.sigma
        return max(min(1.0, typical / 0.003), loss_range(self.sigma) / 10, math.sqrt(self.steps) * typical / 20)

    def step_distribution(self, width: float) -> Any:
        from sfumato.privacy.theorems.sampled_losses import sampled_gaussian

        return sampled_gaussian(self.sigma, self.probability, width)

    def renyi(self, orders: Sequence[float]) -> Any:
        from sfumato.privacy.theorems.sampled_losses import sampled_gaussian_renyi

        return self.steps * sampled_gaussian_renyi(self.sigma, self.probability, orders)


def loss_range(sigma: float) -> float:
    """Roughly the range of the losses of one release of sensitivity 1."""
    return 1 / (2 * sigma**2) + 10 / sigma


class TruncatedGaussian(PoissonGaussian):
    """The Gaussian mechanism under truncated Poisson sampling, composed over all steps."""

    participations = (TruncatedPoisson,)
    name = "Gaussian mechanism under truncated Poisson sampling"
    citation = (
        "arXiv 2508.15089 (dominating pair: a mixture of a step that is cut, in which another may take the unit's "
        "place, and one that is not); Doroshenko et al. 2022 (privacy loss distributions, pessimistic connect-the-dots)"
    )

    def part(self, plan: Plan, steps: int) -> TruncatedGaussians:
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
    """`steps` Gaussian releases of noise `sigma` over the sensitivity, each of at most `largest` sampled units.

    The rough step count (`equivalent_steps`) ignores the truncation.
    """

    has_renyi = False
    largest: int
    population: int

    @property
    def coarsening(self) -> float:
        """As without truncation, or as wide as needed if another record takes the unit's place: the sum moves by 2."""
        return max(super().coarsening, loss_range(self.sigma / 2) / 5)

    def step_distribution(self, width: float) -> Any:
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


class CyclicBanded(Theorem):
    """The steps of a unit's group are at least as far apart as C has bands, so their columns of C share no row."""

    participations, mechanisms = (CyclicPoisson,), (Gaussian, BandedToeplitz)
    name = "Gaussian mechanism with banded noise, amplified by cyclic Poisson sampling"
    citation = (
        f"Choquette-Choo et al. 2023 (arXiv 2306.08153), theorems 1, 4 and 5; for each turn: {PoissonGaussian.citation}"
    )
    tight = PoissonGaussian.tight

    def check(self, plan: Plan) -> None:
        super().check(plan)
        bands, groups = len(_coefficients(plan)), _rule(plan).groups
        if bands > groups:
            raise SfumatoError(
                f"groups must be at least as many as the {bands} bands of the noise, got {groups}: a unit may take "
                "part only once within the reach of a band",
                f"give {bands} groups, fewer bands, or use a fixed order",
            )

    def part(self, plan: Plan, steps: int) -> SampledGaussians:
        """ceil(T / b) steps of probability b B / N and noise sigma / ||c||."""
        rule = _rule(plan)
        sigma = self.relative_noise(plan) / math.hypot(*_coefficients(plan))
        turns = -(-steps // rule.groups)
        return SampledGaussians(sigma=sigma, probability=rule.turn_probability(plan.population), steps=turns)

    def equivalent_steps(self, plan: Plan, mu: float) -> float:
        """As many turns as Poisson sampling has steps, times the number of groups."""
        return _rule(plan).groups * self.part(plan, 1).equivalent_steps(mu)


def _rule(plan: Plan) -> CyclicPoisson:
    assert isinstance(plan.participation, CyclicPoisson)
    return plan.participation


def _coefficients(plan: Plan) -> tuple[float, ...]:
    """c. Independent noise has c_0 alone."""
    return plan.mechanism.coefficients if isinstance(plan.mechanism, BandedToeplitz) else (1.0,)
