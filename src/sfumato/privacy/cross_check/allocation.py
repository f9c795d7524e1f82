"""The likelihood ratio of an epoch of random allocation, below and above the exact one in convex order.

The ratio W is the mean of t independent e^N(-mu^2 / 2, mu^2) without the unit. Its values are grouped into cells. If
each cell is replaced by its mean, W becomes smaller in convex order, and so does every delta; if it is replaced by its
two ends, with the same mean, W becomes larger. Sums of independent numbers keep either order.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtr

CELLS = 1000
_REACH = 10.0
"""In standard deviations. The probability beyond, 1e-23, counts as lost."""
_SMALLEST = 1e-26
"""Values with less probability than this, with the unit and without it, count as lost."""


@dataclass(frozen=True)
class Ratios:
    """Values, their probabilities without the unit and times their values; and the lost parts of either."""

    values: Any
    masses: Any
    lost: float
    lost_moment: float

    def plus(self, other: Ratios, above: bool) -> Ratios:
        """The sum with an independent one, in cells of equal width in logarithms."""
        values = np.add.outer(self.values, other.values).ravel()
        masses = np.multiply.outer(self.masses, other.masses).ravel()
        lost = self.lost + other.lost
        lost_moment = sum(
            one.lost_moment + one.lost * float(two.values @ two.masses) for one, two in ((self, other), (other, self))
        )
        kept = np.maximum(masses, masses * values) > _SMALLEST * float(values @ masses) / len(values)
        lost, lost_moment = lost + float(masses[~kept].sum()), lost_moment + float(masses[~kept] @ values[~kept])
        values, masses = values[kept], masses[kept]
        logs = np.log(values)
        ends = np.linspace(logs.min(), logs.max() + 1e-12, CELLS + 1)
        cell = np.clip(np.searchsorted(ends, logs, side="right") - 1, 0, CELLS - 1)
        found = np.bincount(cell, masses, CELLS), np.bincount(cell, masses * values, CELLS)
        return Ratios(*_replaced(np.exp(ends), *found, above), lost, lost_moment)


def _replaced(ends: Any, masses: Any, moments: Any, above: bool) -> tuple[Any, Any]:
    """Each cell's mean, or its two ends: values and masses."""
    if not above:
        filled = masses > 0
        return moments[filled] / masses[filled], masses[filled]
    up = np.clip((moments - ends[:-1] * masses) / np.diff(ends), 0.0, masses)
    return ends, np.append(masses - up, 0.0) + np.append(0.0, up)


@functools.lru_cache(maxsize=2)
def epoch_ratios(sigma: float, steps: int, above: bool) -> Ratios:
    """W of an epoch with this many steps: in convex order at most, or if `above` at least, the exact one.

    Cached, because both directions of the loss need it.
    """
    mu = 1 / sigma
    edges = np.linspace(-_REACH, _REACH + mu, CELLS + 1)
    masses, moments = _intervals(edges), _intervals(edges - mu)
    values, masses = _replaced(np.exp(mu * edges - mu**2 / 2), masses, moments, above)
    power, total = Ratios(values / steps, masses, 1e-22, 1e-22 / steps), None
    remaining = steps
    while True:
        if remaining & 1:
            total = power if total is None else total.plus(power, above)
        remaining >>= 1
        if not remaining:
            break
        power = power.plus(power, above)
    assert total is not None
    return total


def epoch_losses(sigma: float, steps: int, removed: bool, above: bool) -> tuple[Any, Any, float]:
    """The privacy losses of an epoch, ascending, their probabilities, and the lost probability."""
    ratios = epoch_ratios(sigma, steps, above)
    logs = np.log(ratios.values)
    if removed:
        return logs, ratios.masses * ratios.values, ratios.lost_moment
    return -logs[::-1], ratios.masses[::-1], ratios.lost


def _intervals(edges: Any) -> Any:
    """The standard normal probability between neighbouring edges, subtracted on the side where numbers are smaller."""
    return np.where(edges[1:] + edges[:-1] < 0, np.diff(ndtr(edges)), -np.diff(ndtr(-edges)))
