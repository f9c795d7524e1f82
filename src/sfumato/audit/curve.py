"""Privacy curve of one Gaussian release, and a lower bound for composed releases with Poisson sampling.

The audits have their own implementation so that they share no formula with the accountant.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import log_ndtr, ndtr

from sfumato._checks import fraction, not_negative
from sfumato.audit.bisection import bisect


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
    """The smallest epsilon >= 0 with delta(epsilon) <= delta; infinite above a million.

    >>> round(epsilon_of(1.0, 1e-5), 4)
    4.3772
    """
    delta, mu = fraction("delta", delta), not_negative("mu", mu)
    return bisect(lambda epsilon: delta_of(mu, epsilon) > delta)


def mu_of(epsilon: float, delta: float) -> float:
    """The mu of the Gaussian curve through (epsilon, delta).

    >>> round(epsilon_of(mu_of(3.0, 1e-5), 1e-5), 6)
    3.0
    """
    epsilon, delta = not_negative("epsilon", epsilon), fraction("delta", delta)
    return bisect(lambda mu: delta_of(mu, epsilon) < delta)


CELLS = 2**20
"""Number of grid cells for the distribution of the total privacy loss."""


def epsilon_of_mixture(mu: float, q: float, steps: int, delta: float) -> float:
    """Lower bound on the epsilon at delta of `steps` releases of N(mu, 1), sampled with probability q.

    The privacy loss of one release is L = ln(1 - q + q e^(mu x - mu^2 / 2)), with x drawn from the mixture. Every loss,
    the largest included, is rounded down to a grid. The distribution of the sum is a power of the Fourier transform.
    An audit must not claim more than it has shown, so the result is a lower bound. In the tested cases it is at most
    1% below the true epsilon.
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
    cell = np.floor(loss / width).astype(int)
    one = np.zeros(CELLS)
    np.add.at(one, (cell - cell[0]) % CELLS, mass)
    total = np.fft.irfft(np.fft.rfft(one) ** steps, CELLS)
    first = math.floor((steps * mean - reach) / width)  # the lowest cell of the sum that the grid can represent
    cells = first + (np.arange(CELLS) + steps * int(cell[0]) - first) % CELLS
    nonzero = total > 1e-16
    losses, total = cells[nonzero] * width, total[nonzero]

    def delta_at(epsilon: float) -> float:
        """Sum of mass (1 - e^(epsilon - loss))^+."""
        return float(total @ -np.expm1(np.minimum(epsilon - losses, 0.0)))

    return bisect(lambda epsilon: delta_at(epsilon) > delta)
