"""Trade-off curves: of one Gaussian, and of sampled Gaussian releases composed, from below.

Computed here once more, so that an audit does not share a formula with the accountant.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import log_ndtr, ndtr

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


CELLS = 2**20
"""The total loss is told apart by so many steps."""


def epsilon_of_mixture(mu: float, q: float, steps: int, delta: float) -> float:
    """At least so much is spent at delta by `steps` releases of N(mu, 1), sampled with probability q.

    The privacy loss of one release is L = ln(1 - q + q e^(mu x - mu^2 / 2)) for x of the mixture. It is rounded down to
    a grid, the largest ones too, and the distribution of the sum is the power of its Fourier transform. From below,
    since an audit must not claim more than it has shown; 1% of the true epsilon is lost at most in what the tests try.
    """
    if mu == 0:
        return 0.0
    x = np.linspace(-9.0, 9.0 + mu, 400_001)
    mass = np.diff((1 - q) * ndtr(x) + q * ndtr(x - mu))
    loss = np.logaddexp(math.log1p(-q), math.log(q) + mu * x[:-1] - mu * mu / 2)
    mean = float(mass @ loss)
    deviation = math.sqrt(float(mass @ (loss - mean) ** 2))
    reach = 12 * math.sqrt(steps) * deviation + float(loss[-1]) - mean
    width = 2 * reach / CELLS
    place = np.floor(loss / width).astype(int)
    one = np.zeros(CELLS)
    np.add.at(one, (place - place[0]) % CELLS, mass)
    total = np.fft.irfft(np.fft.rfft(one) ** steps, CELLS)
    first = math.floor((steps * mean - reach) / width)  # the sum's least place that is told apart
    places = first + (np.arange(CELLS) + steps * int(place[0]) - first) % CELLS
    kept = total > 1e-16
    losses, total = places[kept] * width, total[kept]

    def spent(epsilon: float) -> float:
        """Sum of mass (1 - e^(epsilon - loss))^+."""
        return float(total @ -np.expm1(np.minimum(epsilon - losses, 0.0)))

    return last(lambda epsilon: spent(epsilon) > delta)
