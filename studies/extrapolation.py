"""More users than a simulated run had, at its signal-to-noise: rounds that meet a budget, and what rounds come to."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from sfumato._checks import SfumatoError, one_of, positive, positive_integer
from sfumato.privacy import FullBatch, PrivacyPlan, Quantile, User
from sfumato.privacy.loss import ACCOUNTANTS, COARSE_GRID, FINE_GRID
from sfumato.privacy.theorems.composed_gaussian import OneGaussian

POPULATIONS = (1_000_000, 3_000_000, 10_000_000)
LEAST_NOISE = 0.02
"""Below this noise multiplier nothing is tried."""


@dataclass(frozen=True, kw_only=True)
class Extrapolated:
    """One population and one budget, or one size of a round.

    Args:
        population: N', as the plan's population is counted.
        epsilon: the budget; where the size of a round is given, what it comes to.
        accountant: "pld" or "rdp", by which it is met.
        plan: the run with the fewest participants in a round that meets it at the simulated run's signal-to-noise; None
            where not even a round of everybody would. Where the size of a round is given, the run with that size.
    """

    population: int
    epsilon: float
    accountant: str
    plan: PrivacyPlan | None

    @property
    def batch_size(self) -> int | None:
        """Participants of a round."""
        return None if self.plan is None else self.plan.expected_batch_size

    @property
    def noise_multiplier(self) -> float | None:
        """Standard deviation over C."""
        return None if self.plan is None else self.plan.noise_multiplier

    @property
    def zcdp(self) -> float | None:
        """rho, where the run is one Gaussian release: see `zcdp`."""
        return None if self.plan is None else zcdp(self.plan)


def extrapolate(
    plan: PrivacyPlan,
    *,
    epsilons: Sequence[float],
    delta: float,
    populations: Sequence[int] = POPULATIONS,
    accountants: Sequence[str] = ACCOUNTANTS,
) -> list[Extrapolated]:
    """The rounds that a budget takes among more users, where the noise in the mean stays what it was.

    Noise multiplier over participants is the simulated run's, so what is learnt in a round is about the same (more
    users in it make its own variance smaller); steps, rule, mechanism, clipping and unit are the plan's. A fixed order
    with more users has longer gaps between one user's participations: its sensitivity is counted anew.

    Args:
        plan: the simulated run.
        epsilons: budgets, at `delta`.
        populations: N', each at least the plan's own batch.
        accountants: "pld" and "rdp"; for mechanisms without sampling their exact Gaussian, and the bound by zCDP.

    **Guarantee.** `row.plan.epsilon(accountant=row.accountant) <= row.epsilon` was computed for each row's plan. That
    fewer participants would not do was looked for by bisection, to one in a thousand.
    """
    positive("delta", delta, remedy="give a number well below 1 over the largest population")
    return [
        Extrapolated(
            population=population,
            epsilon=epsilon,
            accountant=accountant,
            plan=_fewest(plan, population, positive("epsilon", epsilon), delta, accountant),
        )
        for accountant, population in _each(plan, accountants, populations)
        for epsilon in epsilons
    ]


def spent_by(
    plan: PrivacyPlan,
    *,
    batch_sizes: Sequence[int],
    delta: float,
    populations: Sequence[int] = POPULATIONS,
    accountants: Sequence[str] = ACCOUNTANTS,
) -> list[Extrapolated]:
    """The other way round: what rounds of these sizes come to, where the noise in the mean stays what it was.

    It is how Xu et al. 2022 (arXiv 2211.10844, section 4.1) draw their figures 2(c), 2(d), 3(b) and 3(c): participants
    and noise multiplier grow in proportion, and epsilon falls.

    Args:
        plan, delta, populations, accountants: as for `extrapolate`.
        batch_sizes: expected participants of a round, each at most a population's.

    **Guarantee.** Each row's epsilon is its plan's, at its delta by its accountant; infinite where the noise is below
    `LEAST_NOISE`, for which nothing is computed.

    Errors: `SfumatoError` for a round of more participants than the rule could have.
    """
    positive("delta", delta, remedy="give a number well below 1 over the largest population")
    if isinstance(plan.participation, FullBatch):
        raise SfumatoError(
            "everybody takes part in each round, so rounds have no size of their own", "take poisson, or a fixed order"
        )
    rows = []
    for accountant, population in _each(plan, accountants, populations):
        most = plan.participation.largest_batch(population, plan.steps)
        for size in batch_sizes:
            if positive_integer("batch_sizes", size) > most:
                raise SfumatoError(
                    f"a round of {size:,} is larger than the {most:,} that a population of {population:,} allows",
                    "give smaller rounds, or a larger population",
                )
            scaled = _scaled(plan, population, size, delta)
            enough = scaled.noise_multiplier >= LEAST_NOISE
            epsilon = scaled.epsilon(accountant=accountant) if enough else math.inf
            rows.append(Extrapolated(population=population, epsilon=epsilon, accountant=accountant, plan=scaled))
    return rows


def _each(plan: PrivacyPlan, accountants: Sequence[str], populations: Sequence[int]) -> Iterator[tuple[str, int]]:
    """Each accountant of the plan with each population."""
    for accountant in accountants:
        one_of("accountants", accountant, plan.loss.accountants)
        for population in populations:
            yield accountant, positive_integer("populations", population, remedy="give numbers such as 1000000")


def zcdp(plan: PrivacyPlan) -> float | None:
    """rho of zero-concentrated DP, S^2 / (2 sigma^2), where the whole run is one Gaussian release; else None.

    **Guarantee.** For the plan's unit and adjacency (Bun and Steinke 2016, proposition 1.6). By it the accountant "rdp"
    bounds epsilon; the exact Gaussian is smaller.
    """
    (part,) = plan.loss.parts
    return part.precision / 2 if isinstance(part, OneGaussian) else None


def _fewest(plan: PrivacyPlan, population: int, epsilon: float, delta: float, accountant: str) -> PrivacyPlan | None:
    ratio = plan.noise_multiplier / plan.expected_batch_size

    def of(batch: int) -> PrivacyPlan:
        return _scaled(plan, population, batch, delta)

    def spent(batch: int, grid: float) -> float:
        return of(batch).epsilon(accountant=accountant, grid=grid)

    most = plan.participation.largest_batch(population, plan.steps)
    if isinstance(plan.participation, FullBatch):
        return of(most) if spent(most, FINE_GRID) <= epsilon else None
    start = min(max(1, math.ceil(LEAST_NOISE / ratio)), most)
    high = _least(lambda batch: spent(batch, COARSE_GRID) <= epsilon, start, most)
    while high <= most and spent(high, FINE_GRID) > epsilon:
        high += max(1, high // 1000)
    return of(high) if high <= most else None


def _scaled(plan: PrivacyPlan, population: int, batch: int, delta: float) -> PrivacyPlan:
    """The plan for so many units and so many of them in a round, the noise in the mean what it was."""
    unit, clipping = plan.unit, plan.clipping
    if isinstance(unit, User) and unit.users is not None:  # as many records each, or as many in a group
        unit = replace(unit, users=math.ceil(unit.users * population / plan.population))
    if isinstance(clipping, Quantile):  # the count grows with the batch, and its noise with it
        clipping = replace(clipping, count_noise=clipping.noise_of_count * batch / plan.expected_batch_size)
    return replace(
        plan,
        population=population,
        participation=plan.participation.with_batch_size(batch),
        mechanism=replace(plan.mechanism, noise_multiplier=plan.noise_multiplier / plan.expected_batch_size * batch),
        clipping=clipping,
        unit=unit,
        delta=delta,
    )


def _least(enough: Callable[[int], bool], start: int, most: int) -> int:
    """The least number from the start that is enough, to one in a thousand; more than the most where that is not."""
    high = start
    while not enough(high):
        if high == most:
            return most + 1
        high = min(2 * high, most)
    low = max(high // 2, start - 1)
    while high - low > max(1, low // 1000):
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
