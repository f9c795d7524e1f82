"""The audit of De et al. 2022, arXiv 2204.13650, appendix A.2, in NumPy and float64: from densities and counts."""

import math

import numpy as np


def densities_of_two(first, second):
    """A grid, its width, and the densities of N(mean, deviation^2) of both on it."""
    reach = 12 * max(first[1], second[1])
    x = np.linspace(min(first[0], second[0]) - reach, max(first[0], second[0]) + reach, 400_001)
    found = [np.exp(-(((x - m) / s) ** 2) / 2) / (s * math.sqrt(2 * math.pi)) for m, s in (first, second)]
    return x[1] - x[0], *found


def total_variation(first, second):
    """Phase I: half of the integral of |p - q|."""
    width, p, q = densities_of_two(first, second)
    return float(np.abs(p - q).sum() * width / 2)


def lower_bound(hits_at_least, alarms_at_most, delta):
    """Phase II: ln((1 - beta - delta) / alpha), 1 - beta no less and alpha no more than these."""
    return max(0.0, math.log(max(hits_at_least - delta, 1e-300) / alarms_at_most))


def largest_advantage(epsilon, delta, *, points=20_001):
    """Table 9: the largest 1 - beta - alpha under 1 - beta <= e^epsilon alpha + delta, also with both exchanged."""
    alpha = np.linspace(0, 1, points)
    beta = np.maximum(0, np.maximum(1 - delta - math.exp(epsilon) * alpha, math.exp(-epsilon) * (1 - delta - alpha)))
    return float((1 - beta - alpha).max())
