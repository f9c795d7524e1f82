"""Privacy losses on a grid, from deltas at its points: connect-the-dots (Doroshenko et al. 2022, algorithm 1).

Of one Gaussian release that a coin decides about they are dp-accounting's, at all points of the grid at once. It looks
at each point by itself, which takes several times as long and was most of what planning took."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from dp_accounting.pld import pld_pmf, privacy_loss_distribution
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss

from sfumato.privacy.theorems.theorem import grid


class Dots(pld_pmf.DensePLDPmf):
    """Masses of which each is exact up to a rounding of itself, whatever the width: see `dots`."""


def dots(low: int, deltas: Any, width: float) -> Dots:
    """The losses, multiples of the width from `low` on, whose delta is this at each of them and never below between.

    A mass is (s_1 - s_0) / (e^width - 1) - s_0 with s_0 and s_1 the changes of delta before and after it, whose
    difference is exact where they are near each other. dp-accounting has (s_1 - s_0 e^width) / (e^width - 1), which
    rounds s_0 and divides that by the width: ten million steps add this up.
    """
    deltas = np.maximum.accumulate(np.clip(deltas, 0, 1)[::-1])[::-1]  # rounding must not make it rise
    if len(deltas) == 1:
        return Dots(width, low, 1 - deltas, float(deltas[0]), True)
    steps = np.diff(deltas)
    masses = np.zeros(len(deltas))
    masses[0] = 1 - deltas[0] + steps[0] / math.expm1(width)
    masses[1:-1] = np.diff(steps) / math.expm1(width) - steps[:-1]
    masses[-1] = steps[-1] / math.expm1(-width)
    return Dots(width, low, np.maximum(masses, 0), float(deltas[-1]), True)


def sampled_gaussian(sigma: float, probability: float, width: float) -> Any:
    """The privacy loss distribution of one release of noise `sigma` over the sensitivity, sampled with this
    probability, rounded pessimistically to a grid of this width: `from_gaussian_mechanism` of dp-accounting."""

    def one_way(adjacency: AdjacencyType) -> Any:
        one = _AllAtOnce(sigma, sensitivity=1, sampling_prob=probability, adjacency_type=adjacency)
        ends: Any = one.connect_dots_bounds()
        low, _, epsilons = grid(ends.epsilon_lower, ends.epsilon_upper, width)
        return dots(low, one.get_delta_for_epsilon(epsilons), width)

    return privacy_loss_distribution._pld_for_subsampled_mechanism(one_way, probability)


class _AllAtOnce(GaussianPrivacyLoss):
    """Its delta at many epsilons."""

    def get_delta_for_epsilon(self, epsilon: Any) -> Any:
        """With q the probability, outcomes up to x have a loss above epsilon: x is where without sampling the loss is
        log(1 + (e^epsilon - 1) / q), or minus that of minus epsilon where the unit is added."""
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
    """log(1 + (e^loss - 1) / q) of each loss above log(1 - q); minus infinity of one that is hardly above."""
    least = math.log(1 - q)
    found = np.full(len(losses), -math.inf)
    above = np.abs(losses - least) > 1e-9 * np.maximum(np.abs(losses), abs(least))
    scale, rest = 1 / q, 1 - 1 / q
    larger, smaller = losses[above] + np.log(scale), np.log(-rest)
    found[above] = larger + np.log1p(-np.exp(smaller - larger))
    found[losses == 0] = np.log(scale + rest)
    return found
