"""One-shot audit: cosines of random directions with the released vector (Andrew et al. 2023, arXiv 2302.03098).

A random direction in d dimensions that is independent of a vector has a cosine of about N(0, 1 / d) with it. This null
distribution is known, so no run without the canaries is needed. The cosines of the included canaries are fitted by a
second Gaussian. The epsilon between the two Gaussians is an estimate without a confidence.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr

from sfumato._checks import SfumatoError, fraction, positive_integer
from sfumato.audit.bisection import bisect
from sfumato.audit.bound import Bound

MOST = 500.0
"""An estimate above this epsilon is reported as infinity."""


def one_shot(cosines: ArrayLike, *, dimensions: int, delta: float) -> Bound:
    """Estimate of epsilon from cosines with a released vector, such as the total change of the weights.

    Args:
        cosines: (n,) cosines of the included canaries, n >= 2. The canaries are independent uniform directions.
        dimensions: d, the dimension of the released vector.
        delta: delta of the promise.
    """
    values, dimensions = np.asarray(cosines, float), positive_integer("dimensions", dimensions)
    if values.ndim != 1 or len(values) < 2 or not (np.abs(values) <= 1 + 1e-9).all():
        raise SfumatoError(
            f"cosines must be at least two numbers in -1..1, got shape {values.shape}", "pass one for each canary"
        )
    mean, deviation = float(values.mean() * math.sqrt(dimensions)), float(values.std(ddof=1) * math.sqrt(dimensions))
    return Bound(
        epsilon=epsilon_between(mean, max(deviation, 1e-6), fraction("delta", delta)),
        delta=delta,
        confidence=None,
        method="one shot, cosines with what was released",
        assumption="that both sides are Gaussian",
        mu=max(0.0, mean),
        observations={"canaries": len(values), "dimensions": dimensions, "mean": mean, "deviation": deviation},
    )


def epsilon_between(mean: float, deviation: float, delta: float) -> float:
    """The epsilon at delta between N(mean, deviation^2) and N(0, 1), the larger of the two directions.

    >>> round(epsilon_between(1.0, 1.0, 1e-5), 4)
    4.3772
    """
    sides = [((mean, deviation), (0.0, 1.0)), ((0.0, 1.0), (mean, deviation))]
    return max(bisect(lambda epsilon, side=side: _delta(*side, epsilon) > delta, limit=MOST) for side in sides)


def _delta(first: tuple[float, float], second: tuple[float, float], epsilon: float) -> float:
    """P[S] - e^epsilon Q[S] for S = {ln(p / q) > epsilon}. The boundaries of S are the roots of a quadratic."""
    (m, s), (n, t) = first, second
    a = (1 / t**2 - 1 / s**2) / 2
    b = m / s**2 - n / t**2
    c = (n**2 / t**2 - m**2 / s**2) / 2 + math.log(t / s) - epsilon
    edges = np.concatenate([[-np.inf], _roots(a, b, c), [np.inf]])
    inner = np.clip(edges, -1e6, 1e6)
    midpoints = (inner[:-1] + inner[1:]) / 2
    inside = a * midpoints**2 + b * midpoints + c > 0
    p, q = (np.diff(ndtr((edges - center) / scale))[inside].sum() for center, scale in (first, second))
    return float(p - math.exp(epsilon) * q)


def _roots(a: float, b: float, c: float) -> list[float]:
    """The real roots of a x^2 + b x + c, ascending."""
    if abs(a) < 1e-12:
        return [-c / b] if b else []
    discriminant = b * b - 4 * a * c
    return sorted((-b + sign * math.sqrt(discriminant)) / (2 * a) for sign in (-1, 1)) if discriminant > 0 else []
