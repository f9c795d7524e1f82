"""White box: what a canary's direction shows of a noisy sum, with the canary and without it (Nasr et al. 2023).

An observation is <noisy sum, canary> / (C sigma), as the nominal noise has it: N(0, 1) without the canary and N(mu, 1)
with it, mu = 1 / sigma. A threshold fixed beforehand gives rates of false alarms and of misses, and on a Gaussian curve

    mu = Phi^-1(1 - FPR) - Phi^-1(FNR).

With Poisson sampling a canary that is there takes part with probability q, so that it is the mixture
(1 - q) N(0, 1) + q N(mu, 1), and FNR = (1 - q) (1 - FPR) + q Phi(Phi^-1(1 - FPR) - mu).

A mu is refuted by an exact test of both counts together. Bounds of both rates, each with half of what may go wrong,
would be refuted together far more rarely than that: of 5,000 observations in each world they show .72 of epsilon 1, the
test of both .82.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import bdtr, ndtr, ndtri
from scipy.stats import binom

from sfumato._checks import SfumatoError, fraction, positive, positive_integer
from sfumato.audit.bound import Bound
from sfumato.audit.clopper_pearson import at_least, at_most
from sfumato.audit.curve import epsilon_of, epsilon_of_mixture
from sfumato.audit.search import last, smallest_fault, unlucky
from sfumato.audit.two_worlds import two_worlds

CELLS = 64
"""Of the interval in which the probability of a false alarm is looked for: more would be slower, and show 1% more."""


def white_box(
    observed_in: ArrayLike,
    observed_out: ArrayLike,
    *,
    delta: float,
    confidence: float = 0.95,
    thresholds: float | Iterable[float],
    steps: int = 1,
    sampling_probability: float = 1.0,
    nominal_mu: float | None = None,
) -> tuple[Bound, Bound]:
    """A bound that presumes a Gaussian curve, and one that presumes nothing, of the same observations.

    Args:
        observed_in: (n,) of releases with a canary, independent of each other.
        observed_out: (n',) of releases without it.
        delta: of the promise.
        confidence: of each bound.
        thresholds: fixed before anything was observed: half the nominal mu is a good one. Several share one minus the
            confidence.
        steps: so many releases make the whole, each with the mu of the observations: sqrt(steps) mu in all, or by
            composition of the mixture.
        sampling_probability: q, with which the canary takes part in a release with it.
        nominal_mu: 1 / sigma, for the smallest fault that would have been noticed.

    Returns:
        The Gaussian bound, with its mu of one release, and the one without assumption, which is of one release: what
        several show together is at least what one shows.

    **Guarantee.** Each exceeds the truth with probability at most 1 - confidence: the second as `two_worlds`, the first
    where a release is a Gaussian mechanism's, sampled with q, whatever its mu.
    """
    inside, outside = np.asarray(observed_in, float), np.asarray(observed_out, float)
    places = np.unique(np.atleast_1d(np.asarray(thresholds, float)))
    plain = two_worlds(inside, outside, delta=delta, confidence=confidence, threshold=places)
    share, steps = (1 - fraction("confidence", confidence)) / len(places), positive_integer("steps", steps)
    q, sizes = _probability(sampling_probability), (len(inside), len(outside))
    counts = {float(place): (int((inside < place).sum()), int((outside >= place).sum())) for place in places}
    mu, threshold = max((mu_shown(*found, sizes, share, q), place) for place, found in counts.items())
    fault = None
    if nominal_mu is not None:
        nominal = positive("nominal_mu", nominal_mu)

        def noticed(factor: float) -> bool:
            alarm, hit = ndtr(-threshold / factor), ndtr((nominal - threshold) / factor)
            lost = unlucky(sizes[0], 1 - (1 - q) * alarm - q * hit)
            return refuted(nominal, lost, unlucky(sizes[1], alarm), sizes, share, q)

        fault = smallest_fault(noticed)
    bound = Bound(
        epsilon=_composed(mu, q, steps, delta),
        delta=delta,
        confidence=confidence,
        method="white box, Gaussian bound" + (f", {steps} releases composed" if steps > 1 else ""),
        assumption="a Gaussian trade-off curve" if q == 1 else f"a Gaussian curve, sampled with probability {q:g}",
        at_most=_composed(mu_shown(0, 0, sizes, share, q), q, steps, delta),
        mu=mu,
        smallest_fault=fault,
        observations={
            "observed_in": sizes[0],
            "observed_out": sizes[1],
            "threshold": threshold,
            "in_below": counts[threshold][0],
            "out_above": counts[threshold][1],
            "steps": steps,
        },
    )
    return bound, replace(plain, method="white box, no assumption" + (", one release" if steps > 1 else ""))


def mu_shown(lost: int, wrong: int, sizes: tuple[int, int], alpha: float, q: float = 1.0) -> float:
    """The largest mu that so many misses and false alarms refute.

    Args:
        lost, wrong: misses, and false alarms.
        sizes: of how many observations with the canary, and without it.
        alpha: the probability of refuting the true mu, at most.
        q: the probability with which the canary takes part.
    """
    return last(_Counts(lost, wrong, sizes, alpha, q).refute, limit=100, precision=1e-6)


def refuted(mu: float, lost: int, wrong: int, sizes: tuple[int, int], alpha: float, q: float = 1.0) -> bool:
    """Whether so few misses beside so many false alarms have a probability of less than alpha, for this mu or a smaller
    one, whatever the probability of a false alarm is.

    The statistic is the mu that the counts themselves give. The probability of a false alarm is looked for in its
    interval of confidence 1 - alpha / 100 (Berger and Boos 1994), in cells: in each of them false alarms are counted as
    at its lower end and misses as at its upper end, which can only be too many.
    """
    return _Counts(lost, wrong, sizes, alpha, q).refute(mu)


class _Counts:
    """Misses and false alarms, and what of their test is the same for every mu: see `refuted`."""

    def __init__(self, lost: int, wrong: int, sizes: tuple[int, int], alpha: float, q: float):
        number_in, number_out = sizes
        self.number_in, self.alpha, self.q, self.gamma = number_in, alpha, q, alpha / 100
        bounds = at_least(wrong, number_out, self.gamma / 2), at_most(wrong, number_out, self.gamma / 2)
        self.ends = np.linspace(*bounds, CELLS + 1)
        first, last_one = int(binom.ppf(1e-15, number_out, bounds[0])), int(binom.isf(1e-15, number_out, bounds[1]))
        alarms = np.arange(max(0, first), min(last_one, number_out) + 1)
        rate, own = (alarms + 0.5) / (number_out + 1), (wrong + 0.5) / (number_out + 1)
        missed = ((lost + 0.5) / (number_in + 1) - (1 - q) * (1 - own)) / q
        estimate = ndtri(1 - own) - ndtri(min(max(missed, 0.0), 1.0))
        as_few = np.floor((number_in + 1) * _missed(rate, estimate, q) - 0.5 + 1e-9)
        alarms, as_few = alarms[as_few >= 0], np.minimum(as_few[as_few >= 0], number_in)
        weight = binom.pmf(alarms, number_out, self.ends[:-1, None])
        self.cell, place = np.nonzero(weight > 1e-20)  # what is left out of a sum is far below the 1e-14 added to it
        self.weight, self.as_few = weight[self.cell, place], as_few[place]
        self.starts = np.searchsorted(self.cell, np.arange(CELLS + 1))
        self.worst = CELLS // 2

    def refute(self, mu: float) -> bool:
        """Whether this mu is refuted: not, as soon as one cell allows it; first the one that allowed most before."""
        if not self._too_rare(self._chances(mu, self.worst, self.worst + 1)):
            return False
        chances = self._chances(mu, 0, CELLS)
        self.worst = int(chances.argmax())
        return self._too_rare(chances)

    def _chances(self, mu: float, first: int, end: int) -> np.ndarray:
        """The probability of so few misses, in these cells."""
        part = slice(self.starts[first], self.starts[end])
        cell, missed = self.cell[part] - first, _missed(self.ends[first + 1 : end + 1], mu, self.q)
        found = self.weight[part] * bdtr(self.as_few[part], self.number_in, missed[cell])
        return np.bincount(cell, found, minlength=end - first)

    def _too_rare(self, chances: np.ndarray) -> bool:
        return float(chances.max()) + self.gamma + 1e-14 < self.alpha


def _missed(alarm: Any, mu: float, q: float) -> Any:
    """The probability of a miss where that of a false alarm is this."""
    return (1 - q) * (1 - alarm) + q * ndtr(ndtri(1 - alarm) - mu)


def _composed(mu: float, q: float, steps: int, delta: float) -> float:
    if math.isinf(mu):
        return math.inf
    return epsilon_of(mu * math.sqrt(steps), delta) if q == 1 else epsilon_of_mixture(mu, q, steps, delta)


def _probability(value: float) -> float:
    if value == 1:
        return 1.0
    try:
        return fraction("sampling_probability", value)
    except SfumatoError:
        raise SfumatoError(
            f"sampling_probability must lie in (0, 1], got {value!r}", "give the plan's, or 1 for full batches"
        ) from None
