"""Gaussian steps under Poisson sampling: plain, truncated at a largest size, and by groups that take turns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss

from sfumato._checks import SfumatoError
from sfumato.privacy.mechanism import BandedToeplitz, Gaussian
from sfumato.privacy.participation import CyclicPoisson, Poisson, TruncatedPoisson
from sfumato.privacy.theorems.connect_dots import connect_dots
from sfumato.privacy.theorems.theorem import Plan, RepeatedSteps, Theorem, grid

MOST_POINTS = 30_000
"""The most points of an integral, about."""


def sampled_gaussian(sigma: float, probability: float, width: float) -> Any:
    """The privacy loss distribution of one release of noise `sigma` over the sensitivity, sampled with `probability`.

    It is rounded pessimistically to a grid of this width: dp-accounting's `from_gaussian_mechanism`.
    """

    def one_way(adjacency: AdjacencyType) -> Any:
        one = _VectorizedLoss(sigma, sensitivity=1, sampling_prob=probability, adjacency_type=adjacency)
        ends: Any = one.connect_dots_bounds()
        low, _, epsilons = grid(ends.epsilon_lower, ends.epsilon_upper, width)
        return connect_dots(low, one.get_delta_for_epsilon(epsilons), width)

    return privacy_loss_distribution._pld_for_subsampled_mechanism(one_way, probability)


def sampled_gaussian_renyi(sigma: float, probability: float, orders: Sequence[float]) -> Any:
    """The Renyi divergence of each order of one release of noise `sigma` over the sensitivity, of shape (orders,).

    Of the two directions, removing a record has the larger one (Mironov, Talwar and Zhang 2019, theorem 5): with q the
    probability and nu = N(0, sigma^2), it is log E_nu[(1 - q + q e^((2 z - 1) / (2 sigma^2)))^a] / (a - 1).

    **Guarantee.** An upper bound. The integral is a sum over equal steps. The integrand has no singularity nearer to
    the real axis than pi sigma^2, so steps of at most sigma^2 / 2 and sigma / 2 leave a relative error below e^-39. A
    bound of the rounding error, which is larger, is added. For so little noise that this takes too many steps, it is
    the bound by Minkowski's inequality, E[(x + y)^a]^(1/a) <= E[x^a]^(1/a) + E[y^a]^(1/a): one term is then e^140 times
    the other, and the bound as good as exact.
    """
    return np.array([_one_renyi(sigma, probability, order) for order in orders])


def _one_renyi(sigma: float, q: float, order: float) -> float:
    """By integration from 40 standard deviations below 0 to 40 above the order: less than e^-700 lies beyond."""
    if q in (0, 1):
        return q * order / (2 * sigma**2)
    if order > MOST_POINTS * sigma**2 / 2:
        return order / (order - 1) * float(np.logaddexp(math.log1p(-q), math.log(q) + (order - 1) / (2 * sigma**2)))
    step = min(sigma, 1.0) / 2  # in standard deviations
    u = np.arange(-40.0, order / sigma + 40.0, step)
    powers = order * np.logaddexp(math.log1p(-q), math.log(q) + (u - 0.5 / sigma) / sigma)
    exponents = powers - u**2 / 2
    highest = exponents.max()
    weights = np.exp(exponents - highest)
    total = weights.sum()
    rounding = 2.0**-50 * (20 + (weights @ (np.abs(powers) + u**2 / 2)) / total)
    return float(highest + math.log(total * step / math.sqrt(2 * math.pi)) + rounding) / (order - 1)


class _VectorizedLoss(GaussianPrivacyLoss):
    """dp-accounting's privacy loss, with delta at many epsilons at once."""

    def get_delta_for_epsilon(self, epsilon: Any) -> Any:
        """Delta at each epsilon.

        With q the probability, the outcomes up to x have a loss above epsilon. Here x is the outcome at which the loss
        without sampling is log(1 + (e^epsilon - 1) / q); if the unit is added, minus that value for minus epsilon.
        """
        q, removed = self.sampling_prob, self.adjacency_type == AdjacencyType.REMOVE
        if q == 1 or np.ndim(epsilon) == 0:
            return super().get_delta_for_epsilon(epsilon)
        epsilons = np.asarray(epsilon, dtype=np.float64)
        sign = 1 if removed else -1
        within = sign * epsilons > math.log1p(-q)
        losses = epsilons[within]
        without = sign * _without_sampling(sign * losses, q)
        x = -0.5 * self.sensitivity - without * (self._standard_deviation**2) / self.sensitivity
        if not removed:
            x = self.sensitivity + x
        deltas = np.zeros(len(epsilons))
        if removed:
            deltas[~within] = -np.expm1(epsilons[~within])
        deltas[within] = self.mu_upper_cdf(x) - np.exp(losses + self.mu_lower_log_cdf(x))
        return np.clip(deltas, 0, 1)


def _without_sampling(losses: np.ndarray, q: float) -> np.ndarray:
    """log(1 + (e^loss - 1) / q) of each loss above log(1 - q); minus infinity for a loss that is barely above it."""
    least = math.log(1 - q)
    result = np.full(len(losses), -math.inf)
    above = np.abs(losses - least) > 1e-9 * np.maximum(np.abs(losses), abs(least))
    scale, rest = 1 / q, 1 - 1 / q
    larger, smaller = losses[above] + np.log(scale), np.log(-rest)
    result[above] = larger + np.log1p(-np.exp(smaller - larger))
    result[losses == 0] = np.log(scale + rest)
    return result


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
        """The self-composition of one step's privacy loss distribution."""
        probability = plan.participation.probability(plan.population)
        return SampledGaussians(sigma=self.relative_noise(plan), probability=probability, steps=steps)

    def equivalent_steps(self, plan: Plan, mu: float) -> float:
        """The number of steps T whose composition tends to the Gaussian mechanism of mu."""
        return self.part(plan, 1).equivalent_steps(mu)


@dataclass(frozen=True, kw_only=True)
class SampledGaussians(RepeatedSteps):
    """`steps` Gaussian releases of noise `sigma` over the sensitivity, each sampled with this probability."""

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
        """The privacy loss distribution of one step."""
        from sfumato.privacy.theorems.poisson_gaussian import sampled_gaussian

        return sampled_gaussian(self.sigma, self.probability, width)

    def event(self) -> Any:
        """dp-accounting's event of all steps."""
        import dp_accounting

        one = dp_accounting.GaussianDpEvent(self.sigma)
        return dp_accounting.SelfComposedDpEvent(dp_accounting.PoissonSampledDpEvent(self.probability, one), self.steps)

    def renyi(self, orders: Sequence[float]) -> Any:
        """The Renyi divergence of all steps at each order."""
        from sfumato.privacy.theorems.poisson_gaussian import sampled_gaussian_renyi

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
    """`steps` Gaussian releases of noise `sigma` over the sensitivity, each of at most `largest` sampled units.

    The rough step count (`equivalent_steps`) ignores the truncation.
    """

    largest: int
    population: int

    @property
    def coarsening(self) -> float:
        """As without truncation, or as wide as needed if another record takes the unit's place: the sum moves by 2."""
        return max(super().coarsening, loss_range(self.sigma / 2) / 5)

    def event(self) -> None:
        """None: no Renyi divergence is known here."""

    def renyi(self, orders: Sequence[float]) -> None:
        """None."""

    def step_distribution(self, width: float) -> Any:
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


class CyclicBanded(Theorem):
    """The steps of a unit's group are at least as far apart as C has bands, so their columns of C share no row."""

    participations, mechanisms = (CyclicPoisson,), (Gaussian, BandedToeplitz)
    name = "Gaussian mechanism with banded noise, amplified by cyclic Poisson sampling"
    citation = (
        f"Choquette-Choo et al. 2023 (arXiv 2306.08153), theorems 1, 4 and 5; for each turn: {PoissonGaussian.citation}"
    )
    tight = PoissonGaussian.tight

    def check(self, plan: Plan) -> None:
        """Refuse a mechanism with more bands than there are groups."""
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
