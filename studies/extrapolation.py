"""Scales a simulated run to more users at the same signal-to-noise ratio: the smallest rounds for a budget, or the
epsilon of given rounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from sfumato._checks import SfumatoError, one_of, positive, positive_integer
from sfumato.privacy import FullBatch, PrivacyPlan, QuantileClipping, User
from sfumato.privacy.loss import ACCOUNTANTS, COARSE_GRID, FINE_GRID
from sfumato.privacy.theorems.composed_gaussian import OneGaussian

POPULATIONS = (1_000_000, 3_000_000, 10_000_000)
LEAST_NOISE = 0.02
"""The least noise multiplier to try."""


@dataclass(frozen=True, kw_only=True)
class Extrapolated:
    """The result for one population and one budget, or for one population and one size of a round.

    Args:
        population: N', in the units of the plan's population.
        epsilon: the budget; for a given size of a round, its cost.
        accountant: the accountant of this epsilon, "pld" or "rdp".
        plan: the run that meets the budget with the fewest participants in a round, at the simulated run's
            signal-to-noise ratio; None if not even rounds of all units meet it. For a given size of a round, the run
            with that size.
    """

    population: int
    epsilon: float
    accountant: str
    plan: PrivacyPlan | None

    @property
    def batch_size(self) -> int | None:
        """The expected number of participants in a round."""
        return None if self.plan is None else self.plan.expected_batch_size

    @property
    def noise_multiplier(self) -> float | None:
        """The standard deviation of the noise over C."""
        return None if self.plan is None else self.plan.noise_multiplier

    @property
    def zcdp(self) -> float | None:
        """rho, if the run is one Gaussian release: see `zcdp`."""
        return None if self.plan is None else zcdp(self.plan)


def extrapolate(
    plan: PrivacyPlan,
    *,
    epsilons: Sequence[float],
    delta: float,
    populations: Sequence[int] = POPULATIONS,
    accountants: Sequence[str] = ACCOUNTANTS,
) -> list[Extrapolated]:
    """The smallest rounds that meet a budget among more users, with the same noise in the mean.

    The ratio of noise multiplier to participants stays that of the simulated run, so a round learns about as much (its
    sampling variance is smaller with more users). Steps, participation, mechanism, clipping and unit are those of the
    plan. In a fixed order, more users mean longer gaps between the participations of one user, so the sensitivity is
    computed again.

    Args:
        plan: the simulated run.
        epsilons: the budgets, at `delta`.
        populations: N', each at least the batch size of the plan.
        accountants: "pld" and "rdp". For mechanisms without sampling these are the exact Gaussian and the zCDP bound.

    **Guarantee.** `row.plan.epsilon(accountant=row.accountant) <= row.epsilon` was computed for each row's plan. That
    fewer participants do not suffice was checked by bisection, to one in a thousand.
    """
    positive(delta=delta, remedy="give a number well below 1 over the largest population")
    return [
        Extrapolated(
            population=population,
            epsilon=epsilon,
            accountant=accountant,
            plan=_fewest_steps(plan, population, positive(epsilon=epsilon), delta, accountant),
        )
        for accountant, population in _variants(plan, accountants, populations)
        for epsilon in epsilons
    ]


def epsilon_of_rounds(
    plan: PrivacyPlan,
    *,
    batch_sizes: Sequence[int],
    delta: float,
    populations: Sequence[int] = POPULATIONS,
    accountants: Sequence[str] = ACCOUNTANTS,
) -> list[Extrapolated]:
    """The epsilon of rounds of these sizes, with the same noise in the mean: the inverse of `extrapolate`.

    Xu et al. 2022 (arXiv 2211.10844, section 4.1) draw their figures 2(c), 2(d), 3(b) and 3(c) this way: participants
    and noise multiplier grow in proportion, and epsilon falls.

    Args:
        plan, delta, populations, accountants: as for `extrapolate`.
        batch_sizes: the expected numbers of participants in a round, at most as large as every population allows.

    **Guarantee.** Each row's epsilon is that of its plan, at its delta, by its accountant. It is infinite if the noise
    multiplier is below `LEAST_NOISE`, for which nothing is computed.

    Errors: `SfumatoError` for a round with more participants than the participation rule allows.
    """
    positive(delta=delta, remedy="give a number well below 1 over the largest population")
    if isinstance(plan.participation, FullBatch):
        raise SfumatoError(
            "everybody takes part in each round, so the size of a round is fixed", "take poisson, or a fixed order"
        )
    rows = []
    for accountant, population in _variants(plan, accountants, populations):
        most = plan.participation.largest_batch(population)
        for size in batch_sizes:
            if positive_integer(batch_sizes=size) > most:
                raise SfumatoError(
                    f"a round of {size:,} is larger than the {most:,} that a population of {population:,} allows",
                    "give smaller rounds, or a larger population",
                )
            scaled = _scaled(plan, population, size, delta)
            enough = scaled.noise_multiplier >= LEAST_NOISE
            epsilon = scaled.epsilon(accountant=accountant) if enough else math.inf
            rows.append(Extrapolated(population=population, epsilon=epsilon, accountant=accountant, plan=scaled))
    return rows


def _variants(plan: PrivacyPlan, accountants: Sequence[str], populations: Sequence[int]) -> Iterator[tuple[str, int]]:
    """Each accountant of the plan with each population."""
    for accountant in accountants:
        one_of(plan.loss.accountants, accountants=accountant)
        for population in populations:
            yield accountant, positive_integer(populations=population, remedy="give numbers such as 1000000")


def zcdp(plan: PrivacyPlan) -> float | None:
    """rho of zero-concentrated DP, S^2 / (2 sigma^2), if the whole run is one Gaussian release; else None.

    **Guarantee.** For the plan's unit and adjacency (Bun and Steinke 2016, proposition 1.6). The accountant "rdp"
    bounds epsilon by this rho; the epsilon of the exact Gaussian is smaller.
    """
    (part,) = plan.loss.parts
    return part.precision / 2 if isinstance(part, OneGaussian) else None


def _fewest_steps(
    plan: PrivacyPlan, population: int, epsilon: float, delta: float, accountant: str
) -> PrivacyPlan | None:
    ratio = plan.noise_multiplier / plan.expected_batch_size

    def of(batch: int) -> PrivacyPlan:
        return _scaled(plan, population, batch, delta)

    def spent(batch: int, grid: float) -> float:
        return of(batch).epsilon(accountant=accountant, grid=grid)

    most = plan.participation.largest_batch(population)
    if isinstance(plan.participation, FullBatch):
        return of(most) if spent(most, FINE_GRID) <= epsilon else None
    start = min(max(1, math.ceil(LEAST_NOISE / ratio)), most)
    high = _least(lambda batch: spent(batch, COARSE_GRID) <= epsilon, start, most)
    while high <= most and spent(high, FINE_GRID) > epsilon:
        high += max(1, high // 1000)
    return of(high) if high <= most else None


def _scaled(plan: PrivacyPlan, population: int, batch: int, delta: float) -> PrivacyPlan:
    """The plan for another population and size of a round, with the same noise in the mean."""
    unit, clipping = plan.unit, plan.clipping
    if isinstance(unit, User) and unit.users is not None:  # keep the number of records per user, or per group
        unit = replace(unit, users=math.ceil(unit.users * population / plan.population))
    if isinstance(clipping, QuantileClipping):  # the count grows with the batch, and so does its noise
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
    """The least number from `start` that is enough, to one in a thousand; `most` + 1 if even `most` is not enough."""
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
