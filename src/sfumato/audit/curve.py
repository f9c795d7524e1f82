"""The Gaussian trade-off curve: mu, epsilon and delta of N(0, 1) against N(mu, 1).

Computed here once more, so that an audit does not share a formula with the accountant.
"""

from __future__ import annotations

import math

from scipy.optimize import brentq
from scipy.special import log_ndtr

from sfumato._checks import SfumatoError, fraction, not_negative

LARGEST = 1e6
"""Beyond this epsilon nothing is told apart."""


def delta_of(mu: float, epsilon: float) -> float:
    """delta(epsilon) = Phi(-epsilon/mu + mu/2) - e^epsilon Phi(-epsilon/mu - mu/2) (Balle and Wang 2018, theorem 8).

    >>> round(delta_of(1.0, 1.0), 6)
    0.126937
    """
    if mu <= 0:
        return 0.0
    first = log_ndtr(-epsilon / mu + mu / 2)
    second = epsilon + log_ndtr(-epsilon / mu - mu / 2)
    return float(math.exp(first) * -math.expm1(min(0.0, second - first)))


def epsilon_of(mu: float, delta: float) -> float:
    """The least epsilon >= 0 with delta(epsilon) <= delta.

    >>> round(epsilon_of(1.0, 1e-5), 4)
    4.3772
    """
    delta, mu = fraction("delta", delta), not_negative("mu", mu)
    if delta_of(mu, 0.0) <= delta:
        return 0.0
    upper = 1.0
    while delta_of(mu, upper) > delta:
        upper *= 2
        if upper > LARGEST:
            return math.inf
    return float(brentq(lambda epsilon: delta_of(mu, epsilon) - delta, 0.0, upper, xtol=1e-10))


def mu_of(epsilon: float, delta: float) -> float:
    """The mu of the curve that passes through (epsilon, delta).

    >>> round(epsilon_of(mu_of(3.0, 1e-5), 1e-5), 6)
    3.0
    """
    epsilon, delta = not_negative("epsilon", epsilon), fraction("delta", delta)
    upper = 1.0
    while delta_of(upper, epsilon) < delta:
        upper *= 2
        if upper > LARGEST:
            raise SfumatoError(f"epsilon must be below {LARGEST:g}, got {epsilon!r}", "give a smaller epsilon")
    return float(brentq(lambda mu: delta_of(mu, epsilon) - delta, 0.0, upper, xtol=1e-12))
