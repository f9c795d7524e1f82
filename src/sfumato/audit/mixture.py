"""Releases of a sampled Gaussian composed: (1 - q) N(0, 1) + q N(mu, 1) against N(0, 1), from below."""

from __future__ import annotations

import math

import numpy as np
from scipy.signal import fftconvolve
from scipy.special import ndtr

from sfumato.audit.search import last

CELLS = 2**15
"""Losses are told apart by so many steps."""


def epsilon_of_mixture(mu: float, q: float, steps: int, delta: float) -> float:
    """At least so much is spent at delta by `steps` releases of N(mu, 1), sampled with probability q.

    The privacy loss of one release, L = ln(1 - q + q e^(mu x - mu^2 / 2)) for x of the mixture, is rounded down to a
    grid, its largest values too, so that the loss of all is never above the true one; the sum's distribution is the
    power of its Fourier transform. From below, since an audit's bound must not be above what it has shown.
    """
    if mu == 0:
        return 0.0
    reach = 9.0 + mu
    spread = max(math.sqrt(steps) * 12 * q * math.expm1(min(mu * mu, 30.0)) ** 0.5, math.log1p(q * math.expm1(mu * 6)))
    width = 4 * spread / CELLS
    x = np.linspace(-reach, reach + mu, 200_001)
    loss = np.logaddexp(math.log1p(-q), math.log(q) + mu * x - mu * mu / 2)
    cumulative = (1 - q) * ndtr(x) + q * ndtr(x - mu)
    place = np.floor(loss[:-1] / width).astype(int)
    mass = np.diff(cumulative)
    least = int(place.min())
    one = np.bincount(place - least, mass)
    total, start = _power(one, least, steps)
    losses = (start + np.arange(len(total))) * width
    return _epsilon(losses, total, delta)


def _power(one: np.ndarray, start: int, steps: int) -> tuple[np.ndarray, int]:
    """The distribution of a sum of so many, by repeated squaring; what is below 1e-18 at the ends is left out."""
    total, at = np.ones(1), 0
    while steps:
        if steps & 1:
            total, at = _trimmed(fftconvolve(total, one), at + start)
        one, start = _trimmed(fftconvolve(one, one), 2 * start) if steps > 1 else (one, start)
        steps >>= 1
    return total, at


def _trimmed(values: np.ndarray, start: int) -> tuple[np.ndarray, int]:
    values = np.maximum(values, 0)
    kept = np.flatnonzero(values > 1e-18)
    return values[kept[0] : kept[-1] + 1], start + int(kept[0])


def _epsilon(losses: np.ndarray, mass: np.ndarray, delta: float) -> float:
    """The least epsilon >= 0 with sum of mass (1 - e^(epsilon - loss))^+ <= delta."""

    def spent(epsilon: float) -> float:
        return float(mass @ -np.expm1(np.minimum(epsilon - losses, 0.0)))

    return last(lambda epsilon: spent(epsilon) > delta)
