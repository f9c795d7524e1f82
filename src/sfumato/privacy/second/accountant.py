"""Epsilon from scratch, between two bounds: a closed form for one Gaussian, and for sampled steps sums of losses.

Not by dp-accounting, and not by its method: losses are rounded to the nearest point of a grid and not upwards, with
their mean kept, and the sum's rounding error is bounded by Hoeffding's inequality, as a privacy random variable
accountant does it (Gopi, Lee and Wutschitz 2021, arXiv 2106.02848, theorem 5).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sfumato.privacy.second.releases import OneRelease, Steps, releases

POINTS = 1 << 20
"""Of the grid of summed losses, which is also the most that one step's losses may lie on."""
_TABLE = 1 << 17
_REACH = 10.0
"""So many standard deviations of the noise are looked at; beyond lies 1e-23, which counts as lost."""
_SPARED = 1e-4
"""The share of delta that each of the three probabilities of error may take."""
_MOST_LOSS = 600.0


@dataclass(frozen=True)
class Bounds:
    """Epsilon at one delta lies between these."""

    lower: float
    upper: float


def bounds(plan: Mapping[str, Any], delta: float) -> Bounds | None:
    """Epsilon of a plan's plain data at this delta; None where nothing here speaks of it.

    **Guarantee.** The pair of distributions that dominates the plan's releases (`releases`) is (upper, delta)-private
    and not (epsilon, delta)-private for any epsilon below `lower`, up to floating-point errors, for which 1e-12 of
    delta and more is set aside. So an accountant that claims less than `lower` is wrong, or its theorem is another one.
    """
    found = releases(plan)
    if found is None:
        return None
    if isinstance(found, OneRelease):
        epsilon = _gaussian(found.mu, delta)
        return Bounds(epsilon * (1 - 1e-9), epsilon * (1 + 1e-9))
    both = [_of_steps(found, delta, removed) for removed in (True, False)]
    if None in both:
        return None
    return Bounds(max(one.lower for one in both if one), max(one.upper for one in both if one))


def _gaussian(mu: float, delta: float) -> float:
    """The root of Phi(mu / 2 - eps / mu) - e^eps Phi(-mu / 2 - eps / mu) = delta, by bisection."""
    from scipy.special import log_ndtr

    def exceeds(epsilon: float) -> bool:
        above, below = log_ndtr(mu / 2 - epsilon / mu), epsilon + log_ndtr(-mu / 2 - epsilon / mu)
        return below < above and above + math.log(-math.expm1(below - above)) > math.log(delta)

    if not exceeds(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while exceeds(high):
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if exceeds(middle) else (low, middle)
    return high


@functools.lru_cache(maxsize=32)
def _of_steps(steps: Steps, delta: float, removed: bool) -> Bounds | None:
    """Epsilon in one direction: of the mixture against no vectors (the unit is removed), or the other way round."""
    import numpy as np

    table = _Table.of(steps, removed)
    spared = _SPARED * delta
    (low, falling), (high, rising) = table.window(steps.count, spared)
    if not (math.isfinite(low) and math.isfinite(high) and high - low < _MOST_LOSS):
        return None
    width = max(high - low, float(np.ptp(table.losses))) / POINTS
    places, masses, wide = table.rounded(width)
    # Independent errors of mean 0, each within an interval of this length: Hoeffding's inequality for their sum.
    off = wide * math.sqrt(steps.count / 2 * math.log(1 / spared))
    shift = steps.count * (table.mean - width * float(places @ masses))
    first = round(low / width)
    ring = np.bincount((places % POINTS).astype(np.int64), masses, POINTS)
    sums = np.roll(np.fft.irfft(np.fft.rfft(ring) ** steps.count, POINTS), -(first % POINTS))
    losses = width * np.arange(first, first + POINTS) + shift
    around = sum(
        math.exp(min(0.0, steps.count * _log_moment(width * places, masses, tilt) - tilt * end))
        for tilt, end in ((falling, low), (rising, high))
    )
    error = spared + around + steps.count * table.lost + 1e-12 + 1e-15 * steps.count
    if error >= delta:
        return Bounds(0.0, math.inf)
    lower, upper = _epsilon(losses, sums, delta + error), _epsilon(losses, sums, delta - error)
    return Bounds(max(0.0, float(lower) - off), float(upper) + off)


@dataclass(frozen=True)
class _Table:
    """The loss of one step as a function of the noisy coordinate x, at many points.

    Args:
        points, losses: x, and the loss where x is seen: rising with x where the unit is removed, else falling.
        below: how probable it is to lie below each point.
        mean: of the loss.
        lost: the probability of what is not in the table.
    """

    points: Any
    losses: Any
    below: Any
    mean: float
    lost: float
    steps: Steps
    removed: bool

    @classmethod
    def of(cls, steps: Steps, removed: bool) -> _Table:
        """The table of one step."""
        import numpy as np

        kept = [k for k, weight in enumerate(steps.weights) if weight > 1e-25]
        points = np.linspace(-_REACH * steps.sigma, kept[-1] + _REACH * steps.sigma, _TABLE)
        losses, below = _loss(steps, points, removed), _below(steps, points, removed)
        chances = np.diff(below)
        # Between neighbouring points: the trapezoid rule, which for Gaussians converges faster than any power.
        density = _density(steps, points, removed)
        mean = float(np.trapezoid(losses * density, points)) / float(np.trapezoid(density, points))
        missing = 1e-25 * len(steps.weights) + 4e-23
        return cls(points, losses, below, mean, missing + max(0.0, 1 - 1e-13 - float(chances.sum())), steps, removed)

    def window(self, count: int, spared: float) -> list[tuple[float, float]]:
        """Between which the sum of so many losses lies, but for about what is spared of probability: the lower and the
        upper end, each with the t by which Chernoff's bound E[e^(t (sum - end))] shows it."""
        import numpy as np

        chances, losses = np.diff(self.below), (self.losses[1:] + self.losses[:-1]) / 2
        mean = float(chances @ losses)
        deviation = math.sqrt(count * max(float(chances @ (losses - mean) ** 2), 1e-300))
        need, ends = math.log(4 / spared), []
        for sign in (-1, 1):
            tilts = np.geomspace(0.05, 100, 60) / deviation
            reach = [(count * _log_moment(losses, chances, sign * tilt) + need) / tilt for tilt in tilts]
            best = int(np.argmin(reach))
            ends.append((sign * (reach[best] + 0.01 * abs(reach[best]) + 1e-9), sign * float(tilts[best])))
        return ends

    def rounded(self, width: float) -> tuple[Any, Any, float]:
        """The step's losses on a grid of this width: the points' numbers, their probabilities, and how long the
        interval is that all rounding errors lie in."""
        import numpy as np

        rising = slice(None) if self.removed else slice(None, None, -1)
        table, points = self.losses[rising], self.points[rising]
        first, last = round(float(table[0]) / width), round(float(table[-1]) / width)
        edges = width * (np.arange(first, last) + 0.5)
        cuts = np.interp(edges, table, points)  # nearly where the loss is at the edge; how nearly is looked at
        astray = float(np.abs(_loss(self.steps, cuts, self.removed) - edges).max(initial=0.0))
        below = _below(self.steps, cuts, self.removed)
        masses = np.diff(np.concatenate([[0.0], below if self.removed else 1 - below, [1.0]]))
        return np.arange(first, last + 1), np.maximum(masses, 0.0), width + 2 * astray


def _loss(steps: Steps, points: Any, removed: bool) -> Any:
    """+- log sum_k w_k e^((2 k x - k^2) / (2 sigma^2))."""
    import numpy as np

    total = np.full(len(points), -np.inf)
    for k, weight in enumerate(steps.weights):
        if weight > 1e-25:
            total = np.logaddexp(total, math.log(weight) + (2 * k * points - k * k) / (2 * steps.sigma**2))
    return total if removed else -total


def _below(steps: Steps, points: Any, removed: bool) -> Any:
    """The probability of a noisy coordinate below each point: of the mixture where the unit is removed, else of noise
    alone."""
    from scipy.special import ndtr

    weights = steps.weights if removed else (1.0,)
    return sum(weight * ndtr((points - k) / steps.sigma) for k, weight in enumerate(weights) if weight > 1e-25)


def _density(steps: Steps, points: Any, removed: bool) -> Any:
    import numpy as np

    weights = steps.weights if removed else (1.0,)
    return sum(weight * np.exp(-(((points - k) / steps.sigma) ** 2) / 2) for k, weight in enumerate(weights))


def _log_moment(losses: Any, chances: Any, tilt: float) -> float:
    """log E[e^(tilt loss)]."""
    import numpy as np

    exponents = tilt * losses
    largest = float(exponents.max())
    return largest + math.log(max(float(chances @ np.exp(exponents - largest)), 1e-300))


def _epsilon(losses: Any, masses: Any, delta: float) -> float:
    """The least epsilon >= 0 with sum over losses above it of (1 - e^(epsilon - loss)) mass <= delta."""
    import numpy as np

    positive = losses > 0
    losses, masses = losses[positive], masses[positive]
    if not len(losses):
        return 0.0
    above = np.cumsum(masses[::-1])[::-1]
    faded = np.cumsum((masses * np.exp(-losses))[::-1])[::-1]
    if above[0] - faded[0] <= delta:
        return 0.0
    enough = above - np.exp(losses) * faded <= delta
    place = int(np.argmax(enough))
    if not enough[place] or not faded[place] > 0 or above[place] <= delta:
        return float(losses[place] if enough[place] else losses[-1])
    return min(max(math.log((above[place] - delta) / faded[place]), 0.0), float(losses[place]))
