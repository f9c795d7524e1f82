"""The Gaussian trade-off curve: mu, epsilon and delta of N(0, 1) against N(mu, 1).

Computed here once more, so that an audit does not share a formula with the accountant.
"""

from __future__ import annotations

import math

from scipy.special import log_ndtr

from sfumato._checks import fraction, not_negative
from sfumato.audit.search import last


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
    """The least epsilon >= 0 with delta(epsilon) <= delta; infinite beyond a million.

    >>> round(epsilon_of(1.0, 1e-5), 4)
    4.3772
    """
    delta, mu = fraction("delta", delta), not_negative("mu", mu)
    return last(lambda epsilon: delta_of(mu, epsilon) > delta)


def mu_of(epsilon: float, delta: float) -> float:
    """The mu of the curve that passes through (epsilon, delta).

    >>> round(epsilon_of(mu_of(3.0, 1e-5), 1e-5), 6)
    3.0
    """
    epsilon, delta = not_negative("epsilon", epsilon), fraction("delta", delta)
    return last(lambda mu: delta_of(mu, epsilon) < delta)
