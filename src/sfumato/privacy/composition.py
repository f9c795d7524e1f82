"""Sums of privacy losses by Fourier transforms that keep the tail: epsilon and delta down to the smallest delta.

A Fourier transform of probabilities loses about 1e-16 of the largest one in each multiplication. After ten thousand
steps that is 1e-12 of delta, which is everything if delta is 1e-12. So each step's masses are first multiplied by
e^(t loss) and divided by their sum M(t) (exponential tilting). After the convolution they are multiplied by
M^T e^(-t loss). With the t of the Chernoff bound at the epsilon in question, M^T e^(-t epsilon) is not much larger than
delta, so the rounding error is relative to delta. The largest possible rounding error is bounded and added to delta.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

LARGEST = 700.0
"""An exponent: e to a larger power is (nearly) beyond all floats."""
_NEGLIGIBLE = 1e-6
"""A bound on rounding below this share of delta is negligible."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Tilted:
    """Masses of a sum of losses that are precise where the tilted sum lies.

    Args:
        tilt: t.
        log_moment: L = log E[e^(t sum)].
        values, masses: the losses of the sum, increasing, and their tilted masses; arrays of shape (points,).
        rounding: by how much e^(t epsilon - L) times delta may be too small at epsilon.
        lost: the probability of an unbounded loss.
    """

    tilt: float
    log_moment: float
    values: Any
    masses: Any
    rounding: float
    lost: float

    def error(self, epsilons: Any) -> Any:
        """The amount added to delta at each epsilon."""
        import numpy as np

        within = np.minimum(epsilons, self.values[-1])
        return self.lost + self.rounding * np.exp(np.minimum(self.log_moment - self.tilt * within, LARGEST))

    @cached_property
    def _sums(self) -> tuple[Any, Any, float]:
        """Sums from each value on, and past the last: of masses, and of masses times e^(middle - loss); the middle."""
        import numpy as np

        middle = float(self.values @ self.masses / max(self.masses.sum(), 1e-300))
        exponents = self.log_moment - self.tilt * self.values
        masses = self.masses * np.exp(np.minimum(exponents, LARGEST))
        faded = self.masses * np.exp(np.minimum(exponents + middle - self.values, LARGEST))
        return _tail_sums(masses), _tail_sums(faded), middle

    def deltas(self, epsilons: Any) -> tuple[Any, Any]:
        """Delta at each of these epsilons, and whether rounding is negligible there."""
        import numpy as np

        upper, lower, middle = self._sums
        after = np.searchsorted(self.values, epsilons, side="right")
        some = epsilons - middle < LARGEST
        taken = np.where(some, np.exp(np.clip(np.where(some, epsilons, 0.0) - middle, None, LARGEST)), 0.0)
        error = self.error(epsilons)
        with np.errstate(over="ignore"):  # only if the error exceeds 1
            deltas = np.maximum(upper[after] - taken * lower[after], 0.0)
        return np.minimum(deltas + error, 1.0), error - self.lost <= _NEGLIGIBLE * deltas

    def epsilon(self, delta: float) -> float:
        """The least epsilon >= 0 with at most this delta; infinity if there is none."""
        import numpy as np

        upper, lower, middle = self._sums
        if self.deltas(np.zeros(1))[0][0] <= delta:
            return 0.0
        if self._delta(len(self.values) - 1) > delta:
            return math.inf
        before, place = -1, len(self.values) - 1
        while place - before > 1:
            between = (before + place) // 2
            before, place = (before, between) if self._delta(between) <= delta else (between, place)
        if place == 0:
            return max(float(self.values[0]), 0.0)
        # Between the previous value and this one, delta is upper + error - e^epsilon lower.
        above = float(upper[place] + self.error(self.values[place - 1 : place])[0]) - delta
        epsilon = float(self.values[place])
        if lower[place] > 0 and above > 0 and math.isfinite(above):
            epsilon = min(epsilon, middle + math.log(above) - math.log(float(lower[place])))
        return max(epsilon, 0.0)

    def _delta(self, place: int) -> float:
        return float(self.deltas(self.values[place : place + 1])[0][0])


def _tail_sums(masses: Any) -> Any:
    import numpy as np

    with np.errstate(over="ignore"):
        return np.append(np.cumsum(masses[::-1])[::-1], 0.0)


_UNIT = 2.0**-53
"""The unit roundoff of float64."""
_FOURIER = 8.0
"""The Fourier transform of n numbers has a relative L2 error of at most this many unit roundoffs times log2(n): 6.7 by
Higham 2002 (Accuracy and Stability of Numerical Algorithms, theorem 24.2), for twiddle factors rounded to nearest."""
_POWER = 8.0
"""The power T of a number of modulus at most 1, computed by its logarithm, has an error of at most this many unit
roundoffs times T."""
_MASS_ROUNDING = 64.0
"""A step's deltas are exact up to this many unit roundoffs of the mass above their loss."""
_OUTSIDE = 32.0
"""The tilted probability on either side of the grid is at most e to minus this."""
_SMALLEST, _VANISHING = 600.0, 80.0
"""Exponents: a tilted mass is at least e to minus the first; a power below e to minus the second counts as 0."""
_PRECISION = 200
"""The losses of a sketch are spaced by about one over this number, relative to their size."""
_POINTS, _MOST_LOWERINGS = 1 << 20, 12
"""If the grid has more points than the first number, a smaller tilt is tried, at most as often as the second says."""


@dataclass(frozen=True, eq=False)
class RepeatedLosses:
    """The privacy losses of identical steps.

    Args:
        masses: probabilities of the losses first, first + 1, ... in units of the grid's width; shape (points,).
        lost: the probability of an unbounded loss.
        count: the number of steps.
        subtracted: whether the masses come from dp-accounting's own connect-the-dots, whose rounding error is
            proportional to 1 / width.
    """

    masses: Any
    first: int
    lost: float
    count: int
    subtracted: bool = False

    @classmethod
    def from_curve(cls, curve: Any, count: int) -> RepeatedLosses:
        """Converts dp-accounting's masses of one step's losses."""
        import numpy as np

        from sfumato.privacy.theorems.sampled_losses import ConnectedDots

        dense, subtracted = curve.to_dense_pmf(), not isinstance(curve, ConnectedDots)
        support = np.flatnonzero(dense._probs > 0)
        ends = (int(support[0]), int(support[-1]) + 1) if len(support) else (0, 1)
        first, lost = int(dense._lower_loss) + ends[0], float(dense._infinity_mass)
        return cls(dense._probs[slice(*ends)], first, lost, count, subtracted)

    def losses(self, width: float) -> Any:
        """The loss of each mass."""
        import numpy as np

        return width * np.arange(self.first, self.first + len(self.masses))

    def tilted(self, width: float, tilt: float) -> tuple[Any, float]:
        """The masses times e^(t loss), divided by their sum, and the logarithm of that sum."""
        return _tilted(self.losses(width), self.masses, tilt)

    def sketch(self, width: float) -> tuple[Any, Any]:
        """Fewer losses with masses whose E[e^(t loss)] is nowhere smaller, and hardly larger.

        Each loss is split between its two neighbours in the sketch with the weights that keep its mean (Jensen's
        inequality).
        """
        import numpy as np

        last = self.first + len(self.masses) - 1
        far, near = [], 0
        while near < max(abs(self.first), abs(last)):
            far.append(near)
            near += 1 + near // _PRECISION
        selected = np.array([self.first, last, *far, *(-distance for distance in far)])
        selected = np.unique(selected[(selected >= self.first) & (selected <= last)])
        places = np.arange(self.first, last + 1)
        after = np.clip(np.searchsorted(selected, places, side="right"), 1, max(len(selected) - 1, 1))
        if len(selected) == 1:
            return width * selected, self.masses
        share = (places - selected[after - 1]) / (selected[after] - selected[after - 1])
        size = len(selected)
        return width * selected, (
            np.bincount(after, self.masses * share, size) + np.bincount(after - 1, self.masses * (1 - share), size)
        )


def _tilted(losses: Any, masses: Any, tilt: float) -> tuple[Any, float]:
    import numpy as np

    with np.errstate(divide="ignore"):
        exponents = tilt * losses + np.log(masses)
    most = float(exponents.max())
    weights = np.exp(np.maximum(exponents - most, -_SMALLEST))
    total = float(weights.sum())
    return weights / total, most + math.log(total)


class Composition:
    """The sum of the privacy losses of many steps.

    **Guarantee.** `epsilon` and `deltas` are never below those of the sum of independent losses with the steps' masses.
    With tilt t and L = log E[e^(t sum)], e^(L - t epsilon) bounds the probability of losses above epsilon. This bound
    times `Tilted.rounding` is added to delta at epsilon. It covers: the rounding errors of the transforms in L2 norm
    (Higham 2002), carried through the powers and to delta by the Cauchy-Schwarz inequality; those of powers, tilting,
    cumulative sums and the steps' own masses; and the tails beyond the grid (Chernoff). Mass that wraps around the grid
    only makes delta larger. If the deltas of one step are wrong by at most kappa P(loss > x) at each x, those of T
    steps are wrong by at most T kappa P(sum > epsilon): replace one step after the other.
    """

    def __init__(self, steps: Sequence[RepeatedLosses], width: float):
        self.steps, self.width = steps, width
        self.lost = -math.expm1(sum(step.count * math.log1p(-min(step.lost, 1 - _UNIT)) for step in steps))
        self._sketches = [step.sketch(width) for step in steps]

    def epsilon(self, delta: float, *, at_least: float = 0.0) -> float:
        """The least epsilon >= `at_least` whose delta, rounding included, is at most this; infinity if none."""
        if delta <= self.lost:
            return math.inf
        if at_least > 0:
            tilt = self._tilt_for(at_least)
            # Delta at epsilon is at most e^(L - t epsilon) times the largest e^(-t x) (1 - e^-x).
            log_share = tilt * math.log(tilt) - (tilt + 1) * math.log1p(tilt)
            bound = self.moments(tilt)[0] - tilt * at_least + log_share
            if bound <= math.log(delta - self.lost):
                return at_least
        # The Chernoff bound exceeds delta by about this factor.
        need = -math.log(min((delta - self.lost) * 10, 0.5))

        def enough(tilt: float) -> bool:
            log_moment, mean, _ = self.moments(tilt)
            return tilt * mean - log_moment + math.log1p(tilt) >= need

        tilted = self.tilted(self._least(enough))
        epsilon = tilted.epsilon(delta)
        for _ in range(_MOST_LOWERINGS):
            if tilted.values[0] <= 0 or tilted.values[0] < epsilon < math.inf:
                break
            tilted = self.tilted(0.7 * tilted.tilt)  # losses below the grid may matter
            epsilon = min(epsilon, tilted.epsilon(delta))
        return max(at_least, epsilon)

    def deltas(self, epsilons: Sequence[float]) -> Any:
        """Delta at each of these epsilons, an array of shape (epsilons,)."""
        import numpy as np

        requested = np.asarray(epsilons, dtype=np.float64)
        result, unresolved = np.ones(len(requested)), np.ones(len(requested), dtype=bool)
        result[np.isposinf(requested)], unresolved[np.isposinf(requested)] = self.lost, False
        while unresolved.any():
            largest = float(requested[unresolved].max())
            tilted = self.tilted(self._tilt_for(largest))
            for _ in range(_MOST_LOWERINGS):
                if tilted.values[0] <= max(largest, 0):
                    break
                tilted = self.tilted(0.7 * tilted.tilt)
            deltas, certain = tilted.deltas(requested)
            result = np.where(np.isposinf(requested), result, np.minimum(result, deltas))
            unresolved &= ~certain & (requested < largest)
        return result

    def moments(self, tilt: float) -> tuple[float, float, float]:
        """A bound on log E[e^(t sum)] over bounded losses, and its first two derivatives: the mean and variance of the
        tilted sum."""
        total = [0.0, 0.0, 0.0]
        for step, (losses, masses) in zip(self.steps, self._sketches, strict=True):
            weights, log_moment = _tilted(losses, masses, tilt)
            mean = float(weights @ losses)
            total[0] += step.count * log_moment
            total[1] += step.count * mean
            total[2] += step.count * float(weights @ (losses - mean) ** 2)
        return total[0], total[1], total[2]

    def _tilt_for(self, epsilon: float) -> float:
        """The tilt that roughly minimises the bound on delta at epsilon."""
        return self._least(lambda tilt: self.moments(tilt)[1] + math.log(tilt) - math.log1p(tilt) >= epsilon)

    def _least(self, enough: Callable[[float], bool]) -> float:
        """Roughly the least tilt that is enough, for a monotone `enough`; too small by at most a thirtieth.

        Just beyond it, the sum of rarely large losses may jump from almost none to the largest.
        """
        deviation = max(math.sqrt(self.moments(0.0)[2]), self.width)
        most = LARGEST / max(self.width, *(float(abs(losses).max()) for losses, _ in self._sketches))
        low = high = 0.1 / deviation
        while high < most and not enough(high):
            low, high = high, 2 * high
        while low > 1e-6 / deviation and enough(low):
            low, high = low / 2, low
        while high / low > 1.03:
            middle = math.sqrt(low * high)
            low, high = (low, middle) if enough(middle) else (middle, high)
        return low

    def tilted(self, tilt: float) -> Tilted:
        """The masses of the sum, computed from the tilted ones on a grid that holds nearly all of them."""
        import numpy as np
        from scipy import fft

        tilts, log_moment, (low, high) = self._weights(tilt)
        for _ in range(_MOST_LOWERINGS):
            if high - low < _POINTS:
                break
            less = self._weights(0.85 * tilt)  # the largest losses of rare steps matter less here
            if less[2][1] - less[2][0] > 0.9 * (high - low):
                break
            tilt *= 0.85
            tilts, log_moment, (low, high) = less
        size: int = fft.next_fast_len(high - low + 1, real=True)  # type: ignore[assignment]
        transform = _FOURIER * _UNIT * (math.log2(size) + 1)
        spectrum, error = 1.0, 0.0
        rounded = 4.0 * (size + abs(log_moment) + tilt * self.width * max(abs(low), abs(high)))
        for step, weights in zip(self.steps, tilts, strict=True):
            ends = abs(step.first), abs(step.first + len(weights) - 1)
            step_error = 2 * tilt * self.width * max(ends) + _MASS_ROUNDING
            if step.subtracted:  # (loss - epsilon)+ / width is at most e^(t (loss - epsilon)) / (e t width)
                step_error += 4 / (math.e * tilt * self.width)
            rounded += step.count * step_error
            error += step.count * (transform * float(np.linalg.norm(weights)) + _POWER * _UNIT)
            places = (step.first + np.arange(len(weights))) % size
            spectrum = spectrum * _power(fft.rfft(np.bincount(places, weights, size)), step.count)
        masses: Any = fft.irfft(spectrum, size)
        error += transform * float(np.linalg.norm(masses))
        # The L2 norm of e^(-t x) (1 - e^-x) over the grid above epsilon: the weight of an error at distance x above
        # epsilon.
        norm = math.sqrt(1 / (2 * tilt * (2 * tilt + 1) * (tilt + 1)) / self.width + 1)
        return Tilted(
            tilt=tilt,
            log_moment=log_moment,
            values=self.width * (low + np.arange(size)),
            masses=np.maximum(np.roll(masses, -(low % size)), 0.0),
            rounding=1.01 * (norm * error + rounded * _UNIT + 2 * math.exp(-_OUTSIDE)),
            lost=self.lost,
        )

    def _weights(self, tilt: float) -> tuple[list[Any], float, tuple[int, int]]:
        """Each step's tilted masses, L of the sum, and the range of the sum."""
        tilted_steps = [step.tilted(self.width, tilt) for step in self.steps]
        log_moment = sum(step.count * moment for step, (_, moment) in zip(self.steps, tilted_steps, strict=True))
        return [weights for weights, _ in tilted_steps], log_moment, self._window(tilt, log_moment)

    def _window(self, tilt: float, log_moment: float) -> tuple[int, int]:
        """The multiples of the width between which the tilted sum lies, up to e^-32 on either side, by Chernoff's
        bound."""
        least = sum(step.count * step.first for step in self.steps)
        most = sum(step.count * (step.first + len(step.masses) - 1) for step in self.steps)

        def enough(by: float, sign: int) -> bool:
            moment, mean, _ = self.moments(tilt + sign * by)
            return sign * by * mean - moment + log_moment >= _OUTSIDE

        up, down = (self._least(lambda by, sign=sign: enough(by, sign)) for sign in (1, -1))
        high = (self.moments(tilt + up)[0] - log_moment + _OUTSIDE) / up
        low = (log_moment - self.moments(tilt - down)[0] - _OUTSIDE) / down
        first, last = max(least, math.floor(low / self.width)), min(most, math.ceil(high / self.width))
        return first, max(last, first)


def _power(spectrum: Any, count: int) -> Any:
    """Each number, of modulus at most 1, raised to the power `count`."""
    import numpy as np

    if count == 1:
        return spectrum
    real, imaginary = spectrum.real, spectrum.imag
    with np.errstate(divide="ignore"):
        squared = np.log1p(np.maximum((real - 1) * (real + 1) + imaginary**2, -1.0))  # log of the squared modulus
    half = count / 2 * squared
    nonzero = half > -_VANISHING
    size, angle = np.exp(half[nonzero]), count * np.arctan2(imaginary[nonzero], real[nonzero])
    result = np.zeros(len(spectrum), dtype=complex)
    result[nonzero] = size * np.cos(angle) + 1j * (size * np.sin(angle))
    return result


def compositions(repeats: Sequence[tuple[Any, int]], width: float) -> Iterator[Composition]:
    """Composes dp-accounting's privacy loss distributions, each with its count: unit removed, then unit added."""
    yield Composition([RepeatedLosses.from_curve(loss._pmf_remove, count) for loss, count in repeats], width)
    if not all(loss._symmetric for loss, _ in repeats):
        added = ((loss._pmf_remove if loss._symmetric else loss._pmf_add, count) for loss, count in repeats)
        yield Composition([RepeatedLosses.from_curve(curve, count) for curve, count in added], width)
