"""Epsilon from scratch, between two bounds, to check the package's accounting.

A single Gaussian has a closed form; sampled steps are sums of losses. Neither dp-accounting nor its method is used:
losses are rounded to the nearest grid point instead of upwards, with their mean kept, and the rounding error of the sum
is bounded by Hoeffding's inequality, as in a privacy random variable accountant (Gopi, Lee and Wutschitz 2021, arXiv
2106.02848, theorem 5).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.privacy.cross_check.releases import OneRelease, Steps, releases

POINTS = 1 << 20
"""The number of grid points for the sum of losses, and the most for the losses of one step."""
_TABLE = 1 << 17
_REACH = 10.0
"""The table covers this many standard deviations of the noise. The probability beyond, 1e-23, counts as lost."""
_ERROR_SHARE = 1e-4
"""The share of delta for each of the three error probabilities."""
_ROUNDING = 8 * 2.0**-53
"""Relative L2 error of a Fourier transform per doubling of its length, and of a power per factor."""
_TILT_FACTORS = (1.05, 1.1, 1.2, 1.4, 1.7, 2.0, 3.0, 5.0, 10.0)
"""Chernoff bounds on the mass beyond the grid are tried at these multiples of the tilt."""
_MOST_LOSS = 600.0


@dataclass(frozen=True)
class Bounds:
    """A lower and an upper bound on epsilon at one delta."""

    lower: float
    upper: float


def bounds(plan: Mapping[str, Any], delta: float) -> Bounds | None:
    """Bounds on the epsilon of a plan's plain data at this delta; None if this accountant does not cover the plan.

    **Guarantee.** The pair of distributions that dominates the plan's releases (`releases`) is (upper, delta)-private
    and not (epsilon, delta)-private for any epsilon below `lower`. The rounding errors of the transforms are relative
    to delta, because losses are tilted first, and are set aside (`_rounding_error`). So an accountant that claims less
    than `lower` is wrong, or uses a different theorem.
    """
    release = releases(plan)
    if release is None:
        return None
    if isinstance(release, OneRelease):
        epsilon = _gaussian(release.mu, delta)
        return Bounds(epsilon * (1 - 1e-9), epsilon * (1 + 1e-9))
    removed, added = (_step_bounds(release, delta, removed) for removed in (True, False))
    if removed is None or added is None:
        return None
    return Bounds(max(removed.lower, added.lower), max(removed.upper, added.upper))


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
def _step_bounds(steps: Steps, delta: float, removed: bool) -> Bounds | None:
    """Epsilon in one direction: the mixture against no vectors if the unit is removed, otherwise the reverse."""
    import numpy as np

    table = _Table.of(steps, removed)
    error_share = _ERROR_SHARE * delta
    (low, falling), (high, rising) = table.window(steps.count, error_share)
    if not (math.isfinite(low) and math.isfinite(high) and high - low < _MOST_LOSS):
        return None
    width = max(high - low, float(np.ptp(table.losses))) / POINTS
    places, masses, wide = table.rounded(width)
    # Independent errors of mean 0, each in an interval of this length: Hoeffding's inequality for their sum.
    rounding = float(wide) * math.sqrt(steps.count / 2 * math.log(1 / error_share))
    shift = steps.count * (table.mean - width * float(places @ masses))
    first = round(low / width)
    tilt = table.tilt(steps.count, delta, width * POINTS)
    moment = _log_moment(width * places, masses, tilt)
    weights = masses * np.exp(tilt * width * places - moment)
    ring = np.bincount((places % POINTS).astype(np.int64), weights, POINTS)
    tilted = np.roll(np.fft.irfft(np.fft.rfft(ring) ** steps.count, POINTS), -(first % POINTS)).clip(min=0)
    grid = width * np.arange(first, first + POINTS)
    losses, sums = grid + shift, tilted * np.exp(np.minimum(steps.count * moment - tilt * grid, _MOST_LOSS))
    outside = sum(
        math.exp(min(0.0, steps.count * _log_moment(width * places, masses, by) - by * end))
        for by, end in ((falling, low), (rising, high))
    )
    error = error_share + outside + steps.count * table.lost
    near = _epsilon(losses, sums, 1.5 * delta)
    share = math.exp(min(_MOST_LOSS, steps.count * moment - tilt * (near - shift)))
    wrap_limit = near - shift + POINTS * width  # a sum above this wraps to one above epsilon, with too much weight
    wrapped = min(
        steps.count * (_log_moment(width * places, masses, tilt * by) - moment) - (by - 1) * tilt * wrap_limit
        for by in _TILT_FACTORS
    )
    error += share * (
        math.exp(min(wrapped, 0.0)) + _rounding_error(weights, tilted, tilt, width, steps.count, table.farthest)
    )
    if error >= delta / 2:  # the error is larger still at epsilons below `near`
        return Bounds(0.0, math.inf)
    lower, upper = _epsilon(losses, sums, delta + error), _epsilon(losses, sums, delta - error)
    return Bounds(max(0.0, float(lower) - rounding), float(upper) + rounding)


def _rounding_error(weights: Any, tilted: Any, tilt: float, width: float, count: int, farthest: float) -> float:
    """The rounding error of delta, divided by a bound on the probability of losses above epsilon.

    It is the L2 error of the tilted sums (Higham 2002, theorem 24.2) times the L2 norm of their weights above epsilon,
    (1 - e^-x) e^(-tilt x), plus the errors of tilting and of adding up.
    """
    import numpy as np

    doublings = math.log2(POINTS) + 1
    of_sums = _ROUNDING * (count * (doublings * float(np.linalg.norm(weights)) + 1) + doublings)
    reach = math.sqrt(1 + 1 / (2 * tilt * (2 * tilt + 1) * (tilt + 1) * width))
    return of_sums * reach + _ROUNDING * (POINTS + count * (tilt * farthest + 8))


@dataclass(frozen=True)
class _Table:
    """The loss of one step as a function of the noisy coordinate x, at many points.

    Args:
        points, losses: x, and the loss at x: increasing in x if the unit is removed, otherwise decreasing.
        chances: the probabilities of the intervals between neighbouring points.
        mean: the mean loss.
        lost: the probability of everything that is not in the table.
    """

    points: Any
    losses: Any
    chances: Any
    mean: float
    lost: float
    steps: Steps
    removed: bool

    @property
    def middles(self) -> Any:
        """A loss for each of `chances`."""
        return (self.losses[1:] + self.losses[:-1]) / 2

    @classmethod
    def of(cls, steps: Steps, removed: bool) -> _Table:
        """The table of one step."""
        import numpy as np

        support = [k for k, weight in enumerate(steps.weights) if weight > 1e-25]
        points = np.linspace(-_REACH * steps.sigma, support[-1] + _REACH * steps.sigma, _TABLE)
        losses = _loss(steps, points, removed)
        chances = _interval_probabilities(steps, points, removed)
        # Between neighbouring points: the trapezoid rule, whose error for Gaussians falls faster than any power.
        density = _density(steps, points, removed)
        mean = float(np.trapezoid(losses * density, points)) / float(np.trapezoid(density, points))
        missing = 1e-25 * len(steps.weights) + 4e-23
        return cls(points, losses, chances, mean, missing + max(0.0, 1 - 1e-13 - float(chances.sum())), steps, removed)

    def window(self, count: int, spared: float) -> list[tuple[float, float]]:
        """The interval that holds the sum of `count` losses except with a probability of about `spared`.

        Returns the lower and the upper end, each with the t whose Chernoff bound E[e^(t (sum - end))] proves it.
        """
        import numpy as np

        chances, losses = self.chances, self.middles
        mean = float(chances @ losses)
        deviation = math.sqrt(count * max(float(chances @ (losses - mean) ** 2), 1e-300))
        need, ends = math.log(4 / spared), []
        for sign in (-1, 1):
            tilts = np.geomspace(0.05, 100, 60) / deviation
            reach = [(count * _log_moment(losses, chances, sign * tilt) + need) / tilt for tilt in tilts]
            best = int(np.argmin(reach))
            ends.append((sign * (reach[best] + 0.01 * abs(reach[best]) + 1e-9), sign * float(tilts[best])))
        return ends

    @property
    def farthest(self) -> float:
        """The largest absolute loss."""
        return float(abs(self.losses).max())

    def tilt(self, count: int, delta: float, room: float) -> float:
        """The t that minimises the Chernoff bound on the loss that is exceeded with probability about 10 delta.

        It is reduced if tilted sums would otherwise exceed the room.
        """
        import numpy as np

        losses, need = self.middles, -math.log(min(10 * delta, 0.5))
        deviation = math.sqrt(count * max(float(self.chances @ losses**2), 1e-300))
        tilts = np.geomspace(0.03, 60, 50) / deviation
        reach = [(count * _log_moment(losses, self.chances, tilt) + need - _share(tilt)) / tilt for tilt in tilts]
        tilt = float(tilts[int(np.argmin(reach))])
        for _ in range(12):
            before = _log_moment(losses, self.chances, tilt)
            beyond = [(count * (_log_moment(losses, self.chances, by * tilt) - before), by) for by in _TILT_FACTORS]
            if min(moment - (by - 1) * tilt * room for moment, by in beyond) < -19:
                break
            tilt *= 0.87
        return tilt

    def rounded(self, width: float) -> tuple[Any, Any, float]:
        """The step's losses on a grid of this width: grid indices, probabilities, and the length of the interval that
        contains all rounding errors."""
        import numpy as np

        rising = slice(None) if self.removed else slice(None, None, -1)
        table, points = self.losses[rising], self.points[rising]
        first, last = round(float(table[0]) / width), round(float(table[-1]) / width)
        edges = width * (np.arange(first, last) + 0.5)
        cuts = np.interp(edges, table, points)  # approximately where the loss is at the edge; see `error`
        error = float(np.abs(_loss(self.steps, cuts, self.removed) - edges).max(initial=0.0))
        ends = [-math.inf, math.inf] if self.removed else [math.inf, -math.inf]
        masses = _interval_probabilities(self.steps, np.concatenate([ends[:1], cuts, ends[1:]]), self.removed)
        return np.arange(first, last + 1), np.maximum(masses, 0.0), width + 2 * error


def _loss(steps: Steps, points: Any, removed: bool) -> Any:
    """+- log sum_k w_k e^((2 k x - k^2) / (2 sigma^2))."""
    import numpy as np

    total = np.full(len(points), -np.inf)
    for k, weight in enumerate(steps.weights):
        if weight > 1e-25:
            total = np.logaddexp(total, math.log(weight) + (2 * k * points - k * k) / (2 * steps.sigma**2))
    return total if removed else -total


def _share(tilt: float) -> float:
    """- log of the largest (1 - e^-x) e^(-tilt x)."""
    return (tilt + 1) * math.log1p(tilt) - tilt * math.log(tilt)


def _interval_probabilities(steps: Steps, points: Any, removed: bool) -> Any:
    """The probability of a noisy coordinate between neighbouring points: under the mixture if the unit is removed,
    otherwise under the noise alone. Subtracts on the side where the numbers are smaller."""
    import numpy as np
    from scipy.special import ndtr

    weights, total = steps.weights if removed else (1.0,), 0.0
    for k, weight in enumerate(weights):
        if weight > 1e-25:
            away = np.clip((points - k) / steps.sigma, -1e3, 1e3)
            below, above = np.diff(ndtr(away)), -np.diff(ndtr(-away))
            total = total + weight * np.abs(np.where(away[1:] + away[:-1] < 0, below, above))
    return total


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
