"""White box: what a canary's direction shows of a noisy sum, with the canary and without it (Nasr et al. 2023).

An observation is <noisy sum, canary> / (C sigma), as the nominal noise has it: N(0, 1) without the canary and N(mu, 1)
with it, mu = 1 / sigma. Thresholds fixed beforehand give rates, Clopper-Pearson bounds them, and on a Gaussian curve

    mu >= Phi^-1(1 - FPR) - Phi^-1(FNR).

With Poisson sampling a canary that is there takes part with probability q, so that it is the mixture
(1 - q) N(0, 1) + q N(mu, 1), and TPR = (1 - q) FPR + q TPR' for the TPR' of a canary that takes part.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri

from sfumato._checks import SfumatoError, fraction, positive, positive_integer
from sfumato.audit.bound import Bound
from sfumato.audit.clopper_pearson import at_most
from sfumato.audit.curve import epsilon_of
from sfumato.audit.faults import smallest_fault, unlucky
from sfumato.audit.mixture import epsilon_of_mixture
from sfumato.audit.two_worlds import two_worlds


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
    share, steps = (1 - confidence) / len(places), positive_integer("steps", steps)
    q = _probability(sampling_probability)
    sizes = len(inside), len(outside)
    found = [(mu_shown((inside < t).sum(), (outside >= t).sum(), sizes, share, q), t) for t in places]
    mu, threshold = max(found)
    fault = None
    if nominal_mu is not None:
        nominal = positive("nominal_mu", nominal_mu)

        def shown(factor: float) -> float:
            alarm, hit = ndtr(-threshold / factor), ndtr((nominal - threshold) / factor)
            lost = unlucky(sizes[0], 1 - (1 - q) * alarm - q * hit)
            return mu_shown(lost, unlucky(sizes[1], alarm), sizes, share, q)

        fault = smallest_fault(shown, nominal)
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
            "threshold": float(threshold),
            "in_below": int((inside < threshold).sum()),
            "out_above": int((outside >= threshold).sum()),
            "steps": steps,
        },
    )
    return bound, replace(plain, method="white box, no assumption" + (", one release" if steps > 1 else ""))


def mu_shown(lost: int, wrong: int, sizes: tuple[int, int], alpha: float, sampling_probability: float = 1.0) -> float:
    """The lower bound of mu from misses and false alarms among so many with the canary and without it.

    >>> round(mu_shown(0, 0, (5000, 5000), 0.05), 3)
    6.359
    """
    q = sampling_probability
    alarms, misses = at_most(int(wrong), sizes[1], alpha / 2), at_most(int(lost), sizes[0], alpha / 2)
    misses = min(1.0, (misses - (1 - q) * (1 - alarms)) / q) if q < 1 else misses
    if misses <= 0:
        return math.inf
    return max(0.0, float(ndtri(1 - alarms) - ndtri(misses))) if alarms < 1 and misses < 1 else 0.0


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
