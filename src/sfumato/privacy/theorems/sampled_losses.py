"""Privacy losses on a grid, and those of one Poisson-sampled Gaussian release, with its Renyi divergences.

Losses come from the deltas at the grid's points by connect-the-dots (Doroshenko et al. 2022, algorithm 1).
The formulas of the distribution are dp-accounting's. Its own code evaluates one point at a time, which takes several
times as long and was most of the time that planning took. Its Renyi divergences are exact for whole orders; for others
it adds up the absolute values of a series with both signs, which come to infinity for little noise and low orders.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from dp_accounting.pld import pld_pmf, privacy_loss_distribution
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss

MOST_POINTS = 30_000
"""The most points of an integral, about."""


def grid(least: float, most: float, width: float) -> tuple[int, int, Any]:
    """The multiples of the width that enclose these losses: the first and last multiplier, and all the multiples."""
    low, high = math.floor(least / width), math.ceil(most / width)
    return low, high, width * np.arange(low, high + 1)


class ConnectedDots(pld_pmf.DensePLDPmf):
    """Masses that are each exact up to their own rounding, for any width: see `connect_dots`."""


def connect_dots(low: int, deltas: Any, width: float) -> ConnectedDots:
    """Losses on multiples of the width from `low` on. Their delta equals `deltas` there and is never too small between.

    A mass is (s_1 - s_0) / (e^width - 1) - s_0, where s_0 and s_1 are the changes of delta before and after it. Their
    difference is exact if they are close. dp-accounting computes (s_1 - s_0 e^width) / (e^width - 1), which rounds s_0
    and divides the error by the width: over ten million steps this adds up.
    """
    deltas = np.maximum.accumulate(np.clip(deltas, 0, 1)[::-1])[::-1]  # rounding must not make delta increase
    if len(deltas) == 1:
        return ConnectedDots(width, low, 1 - deltas, float(deltas[0]), True)
    steps = np.diff(deltas)
    masses = np.zeros(len(deltas))
    masses[0] = 1 - deltas[0] + steps[0] / math.expm1(width)
    masses[1:-1] = np.diff(steps) / math.expm1(width) - steps[:-1]
    masses[-1] = steps[-1] / math.expm1(-width)
    return ConnectedDots(width, low, np.maximum(masses, 0), float(deltas[-1]), True)


def sampled_gaussian(sigma: float, probability: float, width: float) -> Any:
    """The privacy loss distribution of one release of noise `sigma` over the sensitivity, sampled with `probability`.

    It is rounded pessimistically to a grid of this width: dp-accounting's `from_gaussian_mechanism`.
    """

    def one_way(adjacency: AdjacencyType) -> Any:
        loss = _VectorizedLoss(sigma, sensitivity=1, sampling_prob=probability, adjacency_type=adjacency)
        ends: Any = loss.connect_dots_bounds()
        low, _, epsilons = grid(ends.epsilon_lower, ends.epsilon_upper, width)
        return connect_dots(low, loss.get_delta_for_epsilon(epsilons), width)

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
