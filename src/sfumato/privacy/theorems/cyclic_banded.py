"""Banded noise under cyclic Poisson sampling: Poisson-sampled Gaussian releases, one for each turn of a group."""

from __future__ import annotations

import math

from sfumato._checks import SfumatoError
from sfumato.privacy.mechanism import BandedToeplitz, Gaussian
from sfumato.privacy.participation import CyclicPoisson
from sfumato.privacy.theorems.poisson_gaussian import PoissonGaussian, SampledGaussians
from sfumato.privacy.theorems.theorem import Plan, Theorem


class CyclicBanded(Theorem):
    """Steps of one unit's group are at least as many apart as C has bands, so its columns for them share no row."""

    participations, mechanisms = (CyclicPoisson,), (Gaussian, BandedToeplitz)
    name = "Gaussian mechanism with banded noise, amplified by cyclic Poisson sampling"
    citation = (
        f"Choquette-Choo et al. 2023 (arXiv 2306.08153), theorems 1, 4 and 5; for each turn: {PoissonGaussian.citation}"
    )
    tight = PoissonGaussian.tight

    def check(self, plan: Plan) -> None:
        """Refuse more bands than groups."""
        super().check(plan)
        bands, groups = len(_coefficients(plan)), _rule(plan).groups
        if bands > groups:
            raise SfumatoError(
                f"groups must be at least as many as the {bands} bands of the noise, got {groups}: within a band's "
                "reach a unit may take part once",
                f"give {bands} groups, fewer bands, or a fixed order",
            )

    def part(self, plan: Plan, steps: int) -> SampledGaussians:
        """ceil(T / b) steps of probability b B / N and noise sigma / ||c||."""
        rule = _rule(plan)
        sigma = self.relative_noise(plan) / math.hypot(*_coefficients(plan))
        turns = -(-steps // rule.groups)
        return SampledGaussians(sigma=sigma, probability=rule.turn_probability(plan.population), steps=turns)

    def steps_like(self, plan: Plan, mu: float) -> float:
        """As many turns as Poisson sampling has steps."""
        return _rule(plan).groups * self.part(plan, 1).repeats_like(mu)


def _rule(plan: Plan) -> CyclicPoisson:
    assert isinstance(plan.participation, CyclicPoisson)
    return plan.participation


def _coefficients(plan: Plan) -> tuple[float, ...]:
    """c, of which the noise of independent steps has c_0 alone."""
    return plan.mechanism.coefficients if isinstance(plan.mechanism, BandedToeplitz) else (1.0,)
