"""The likelihood ratio of one epoch of random allocation: an upper bound on its distribution, in convex order.

Without the unit, a step's release along the unit's vector is N(0, sigma^2). With it, one of t such releases, drawn
uniformly, is N(1, sigma^2) instead. Let Q be the distribution of all t releases without the unit, and P with it. Then
W = dP / dQ is the mean of t independent ratios V = e^Y, where Y is N(-mu^2 / 2, mu^2) under Q and mu = 1 / sigma. Both
directions of the privacy loss are expectations of convex functions of W under Q:

    delta(epsilon) = E[(W - e^epsilon)+] if the unit is removed, and E[(1 - e^epsilon W)+] if it is added.

So any W' that is larger in convex order gives upper bounds for both. Convex order is kept by sums of independent
numbers (Shaked and Shanthikumar 2007, Stochastic Orders, theorem 3.A.12), and moving a mass to the two grid points
around it, with the weights that keep its mean, never makes a distribution smaller (Jensen's inequality). This is
connect-the-dots (Doroshenko et al. 2022), used once for V and once for each sum of two. Its error falls with the square
of the grid's spacing. Feldman and Shenfeld (arXiv 2602.17284) convolve on geometric grids as well, but round each sum
in one direction, with an error in proportion to the spacing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

NEGLIGIBLE = 1e-20
"""The most probability that is cut off at either end of a distribution. It is added to delta."""
ROUNDING = 1e-12
"""Bounds the relative rounding error of one step's masses and of one sum of two. All masses are made larger by that
much for each step of an epoch, since t masses are multiplied."""
_FARTHEST = 9.3
"""In standard deviations. Noise exceeds this with probability below 1e-20."""
_NODES = 12
"""Nodes of the quadrature for each mu of a cell of the grid. Its relative error is below 1e-15."""


@dataclass(frozen=True)
class Ratio:
    """The ratio's distribution under Q, in convex order at least the exact one.

    Args:
        first: k of the first point `mean * e^(k * width)`; the others follow, k + 1, k + 2, ...
        masses: probabilities under Q of the points; shape (points,).
        width: the spacing of the points' logarithms.
        mean: the exact mean, by which points are anchored.
        lost: under Q, the probability of outcomes that were cut off.
        lost_moment: under Q, E[V] over these outcomes. Divided by the mean it is their probability under P.
    """

    first: int
    masses: Any
    width: float
    mean: float
    lost: float
    lost_moment: float

    def cut(self) -> Ratio:
        """The same without the ends of probability `NEGLIGIBLE`, under Q at the lower one and under P at the upper."""
        moments = self.moments()
        low = int(np.searchsorted(np.cumsum(self.masses), NEGLIGIBLE))
        high = len(moments) - int(np.searchsorted(np.cumsum(moments[::-1]), NEGLIGIBLE * self.mean))
        outside = np.r_[0:low, high : len(moments)]
        lost = self.lost + float(self.masses[outside].sum()), self.lost_moment + float(moments[outside].sum())
        return Ratio(self.first + low, self.masses[low:high], self.width, self.mean, *lost)

    def moments(self) -> Any:
        """Each point's mass times its value, an array of shape (points,)."""
        return self.masses * self.mean * np.exp(self.width * (self.first + np.arange(len(self.masses))))

    def refined(self, times: int) -> Ratio:
        """The same on a grid with this many times as many points."""
        masses = np.zeros((len(self.masses) - 1) * times + 1)
        masses[::times] = self.masses
        return Ratio(self.first * times, masses, self.width / times, self.mean, self.lost, self.lost_moment)

    def plus(self, other: Ratio) -> Ratio:
        """The sum with an independent one of the same width.

        The sum of points i and i + d lies at mean * e^((i + x_d) * width), with an x_d that depends on d alone.
        """
        mean, width, same = self.mean + other.mean, self.width, other is self
        last, other_last = self.first + len(self.masses), other.first + len(other.masses)
        distances = np.arange(0 if same else other.first - last + 1, other_last - self.first)
        places = _log_of_mean(width * distances, other.mean / mean) / width
        below = np.floor(places).astype(int)
        above = np.clip(np.expm1(width * (places - below)) / math.expm1(width), 0.0, 1.0)
        first = min(self.first, other.first)
        masses = np.zeros(max(last, other_last) - first + 2)
        for distance, place, share in zip(distances.tolist(), below.tolist(), above.tolist(), strict=True):
            start, end = max(self.first, other.first - distance), min(last, other_last - distance)
            pairs = self.masses[start - self.first : end - self.first]
            pairs = pairs * other.masses[start + distance - other.first : end + distance - other.first]
            if same and distance:
                pairs *= 2  # i + d and i
            at = start + place - first
            moved = share * pairs
            masses[at + 1 : at + 1 + len(pairs)] += moved
            masses[at : at + len(pairs)] += pairs - moved
        lost = self.lost + other.lost
        lost_moment = self.lost_moment + other.lost_moment + self.lost * other.mean + other.lost * self.mean
        return Ratio(first, masses, width, mean, lost, lost_moment).cut()


def _log_of_mean(logs: Any, share: float) -> Any:
    """log(1 - share + share e^logs), exact for small logs and without overflow for large ones."""
    small = np.log1p(share * np.expm1(np.minimum(logs, 1.0)))
    return np.where(logs < 1, small, np.logaddexp(math.log1p(-share), math.log(share) + logs))


def one_step(mu: float, width: float, mean: float) -> Ratio:
    """`mean` times V. In each cell of the grid, the mass of either end is an integral of the density, by quadrature."""
    reach = mu**2 / 2 + _FARTHEST * mu
    first, last = math.floor(-reach / width), math.ceil(reach / width)
    nodes, weights = np.polynomial.legendre.leggauss(_NODES * math.ceil(width / mu))
    inside = width * (nodes + 1) / 2
    cells = width * np.arange(first, last)[:, None] + inside
    density = np.exp(-(((cells + mu**2 / 2) / mu) ** 2) / 2) * (width / 2 * weights) / (mu * math.sqrt(2 * math.pi))
    up = np.expm1(inside) / math.expm1(width)
    masses = np.zeros(last - first + 1)
    masses[1:] += density @ up
    masses[:-1] += density @ (1 - up)
    return Ratio(first, masses, width, mean, NEGLIGIBLE, NEGLIGIBLE * mean).cut()


def epoch_ratio(mu: float, steps: int, width: float) -> Ratio:
    """W of an epoch with this many steps, on a grid of this width.

    Sums of n of the steps are on a grid that is sqrt(steps / n) times wider (rounded down to a power of 2), since their
    errors are averaged over steps / n of them.

    **Guarantee.** In convex order, the result is at least the mean of `steps` independent e^N(-mu^2 / 2, mu^2). What
    was cut off is in `lost` and `lost_moment`; the rounding errors are in the masses (`ROUNDING`).
    """

    def coarseness(number: int) -> int:
        return 1 << (math.isqrt(steps // number).bit_length() - 1)

    power, number, total = one_step(mu, width * coarseness(1), 1 / steps), 1, None
    remaining = steps
    while True:
        if remaining & 1:
            total = power if total is None else total.refined(round(total.width / power.width)).plus(power)
        remaining >>= 1
        if not remaining:
            break
        power = power.refined(coarseness(number) // coarseness(2 * number))
        power, number = power.plus(power), 2 * number
    assert total is not None
    total = total.refined(round(total.width / width))
    return Ratio(total.first, total.masses * (1 + ROUNDING * steps), width, 1.0, total.lost, total.lost_moment)
