"""Releases of a sampled Gaussian composed: (1 - q) N(0, 1) + q N(mu, 1) against N(0, 1), from below."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtr

from sfumato.audit.search import last

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
