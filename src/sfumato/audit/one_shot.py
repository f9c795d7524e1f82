"""One shot: cosines of random directions with what was released (Andrew et al. 2023, arXiv 2302.03098).

A random direction in d dimensions that had no part in a vector has with it a cosine of about N(0, 1 / d), in closed
form, so that no world without the canaries is needed. Those of canaries that were in are fitted by a Gaussian too, and
epsilon is that of telling the two apart: an estimate, without any confidence.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr

from sfumato._checks import SfumatoError, fraction, positive_integer
from sfumato.audit.bound import Bound
from sfumato.audit.search import last

MOST = 500.0
"""Beyond this epsilon an estimate says infinity."""


def one_shot(cosines: ArrayLike, *, dimensions: int, delta: float) -> Bound:
    """An estimate of epsilon from cosines with a released vector, such as the whole change of the weights.

    Args:
        cosines: (n,) of canaries that were in, n >= 2: independent, uniform directions.
        dimensions: d, of the released vector.
        delta: of the promise.
    """
    found, dimensions = np.asarray(cosines, float), positive_integer("dimensions", dimensions)
    if found.ndim != 1 or len(found) < 2 or not (np.abs(found) <= 1 + 1e-9).all():
        raise SfumatoError(
            f"cosines must be at least two numbers in -1..1, got shape {found.shape}", "give one for each canary"
        )
    mean, deviation = float(found.mean() * math.sqrt(dimensions)), float(found.std(ddof=1) * math.sqrt(dimensions))
    return Bound(
        epsilon=epsilon_between(mean, max(deviation, 1e-6), fraction("delta", delta)),
        delta=delta,
        confidence=None,
        method="one shot, cosines with what was released",
        assumption="that both sides are Gaussian",
        mu=max(0.0, mean),
        observations={"canaries": len(found), "dimensions": dimensions, "mean": mean, "deviation": deviation},
    )


def epsilon_between(mean: float, deviation: float, delta: float) -> float:
    """The epsilon at delta that N(mean, deviation^2) and N(0, 1) have of each other, the larger of both directions.

    >>> round(epsilon_between(1.0, 1.0, 1e-5), 4)
    4.3772
    """
    sides = [((mean, deviation), (0.0, 1.0)), ((0.0, 1.0), (mean, deviation))]
    return max(last(lambda epsilon, side=side: _delta(*side, epsilon) > delta, limit=MOST) for side in sides)


def _delta(first: tuple[float, float], second: tuple[float, float], epsilon: float) -> float:
    """P[S] - e^epsilon Q[S] for S = {ln(p / q) > epsilon}, whose ends solve a quadratic equation."""
    (m, s), (n, t) = first, second
    a = (1 / t**2 - 1 / s**2) / 2
    b = m / s**2 - n / t**2
    c = (n**2 / t**2 - m**2 / s**2) / 2 + math.log(t / s) - epsilon
    edges = np.concatenate([[-np.inf], _roots(a, b, c), [np.inf]])
    inner = np.clip(edges, -1e6, 1e6)
    middles = (inner[:-1] + inner[1:]) / 2
    inside = a * middles**2 + b * middles + c > 0
    p, q = (np.diff(ndtr((edges - center) / scale))[inside].sum() for center, scale in (first, second))
    return float(p - math.exp(epsilon) * q)


def _roots(a: float, b: float, c: float) -> list[float]:
    """Where a x^2 + b x + c = 0, ascending."""
    if abs(a) < 1e-12:
        return [-c / b] if b else []
    under = b * b - 4 * a * c
    return sorted((-b + sign * math.sqrt(under)) / (2 * a) for sign in (-1, 1)) if under > 0 else []
