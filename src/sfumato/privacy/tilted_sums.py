"""Epsilon and delta from the tilted masses of a sum of privacy losses."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

LARGEST = 700.0
"""An exponent: e to a larger power is (nearly) beyond all floats."""
_NEGLIGIBLE = 1e-6
"""A bound on rounding below this share of delta is negligible."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Tilted:
    """Masses of a sum of losses that are precise where the tilted sum lies.

    Args:
        tilt: t.
        log_moment: L = log E[e^(t sum)].
        values, masses: the losses of the sum, increasing, and their tilted masses; arrays of shape (points,).
        rounding: by how much e^(t epsilon - L) times delta may be too small at epsilon.
        lost: the probability of an unbounded loss.
    """

    tilt: float
    log_moment: float
    values: Any
    masses: Any
    rounding: float
    lost: float

    def error(self, epsilons: Any) -> Any:
        """The amount added to delta at each epsilon."""
        import numpy as np

        within = np.minimum(epsilons, self.values[-1])
        return self.lost + self.rounding * np.exp(np.minimum(self.log_moment - self.tilt * within, LARGEST))

    @cached_property
    def _sums(self) -> tuple[Any, Any, float]:
        """Sums from each value on, and past the last: of masses, and of masses times e^(middle - loss); the middle."""
        import numpy as np

        middle = float(self.values @ self.masses / max(self.masses.sum(), 1e-300))
        exponents = self.log_moment - self.tilt * self.values
        masses = self.masses * np.exp(np.minimum(exponents, LARGEST))
        faded = self.masses * np.exp(np.minimum(exponents + middle - self.values, LARGEST))
        return _tail_sums(masses), _tail_sums(faded), middle

    def deltas(self, epsilons: Any) -> tuple[Any, Any]:
        """Delta at each of these epsilons, and whether rounding is negligible there."""
        import numpy as np

        upper, lower, middle = self._sums
        after = np.searchsorted(self.values, epsilons, side="right")
        some = epsilons - middle < LARGEST
        taken = np.where(some, np.exp(np.clip(np.where(some, epsilons, 0.0) - middle, None, LARGEST)), 0.0)
        error = self.error(epsilons)
        with np.errstate(over="ignore"):  # only if the error exceeds 1
            deltas = np.maximum(upper[after] - taken * lower[after], 0.0)
        return np.minimum(deltas + error, 1.0), error - self.lost <= _NEGLIGIBLE * deltas

    def epsilon(self, delta: float) -> float:
        """The least epsilon >= 0 with at most this delta; infinity if there is none."""
        import numpy as np

        upper, lower, middle = self._sums
        if self.deltas(np.zeros(1))[0][0] <= delta:
            return 0.0
        if self._delta(len(self.values) - 1) > delta:
            return math.inf
        before, place = -1, len(self.values) - 1
        while place - before > 1:
            between = (before + place) // 2
            before, place = (before, between) if self._delta(between) <= delta else (between, place)
        if place == 0:
            return max(float(self.values[0]), 0.0)
        # Between the previous value and this one, delta is upper + error - e^epsilon lower.
        above = float(upper[place] + self.error(self.values[place - 1 : place])[0]) - delta
        epsilon = float(self.values[place])
        if lower[place] > 0 and above > 0 and math.isfinite(above):
            epsilon = min(epsilon, middle + math.log(above) - math.log(float(lower[place])))
        return max(epsilon, 0.0)

    def _delta(self, place: int) -> float:
        return float(self.deltas(self.values[place : place + 1])[0][0])


def _tail_sums(masses: Any) -> Any:
    import numpy as np

    with np.errstate(over="ignore"):
        return np.append(np.cumsum(masses[::-1])[::-1], 0.0)
