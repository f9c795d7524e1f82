"""What the tilted masses of a sum of privacy losses say of epsilon and delta."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

LARGEST = 700.0
"""An exponent: e to the power of larger ones is (nearly) beyond all numbers."""
_NEGLIGIBLE = 1e-6
"""Of a delta: a bound on rounding below this share of it is as good as none."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Tilted:
    """Masses of a sum of losses that are precise about where the tilted sum lies.

    Args:
        log_moment: L = log E[e^(t sum)].
        values, masses: the sum's losses, rising, and their tilted masses; arrays of shape (points,).
        rounding: by how much e^(t epsilon - L) times delta may be too small at epsilon.
        lost: the probability of a loss without bound.
    """

    tilt: float
    log_moment: float
    values: Any
    masses: Any
    rounding: float
    lost: float

    def error(self, epsilons: Any) -> Any:
        """What is added to delta at each epsilon."""
        import numpy as np

        within = np.minimum(epsilons, self.values[-1])
        return self.lost + self.rounding * np.exp(np.minimum(self.log_moment - self.tilt * within, LARGEST))

    @cached_property
    def _sums(self) -> tuple[Any, Any, float]:
        """From each value on, and behind the last: the mass, and that times e^(middle - loss); and the middle."""
        import numpy as np

        middle = float(self.values @ self.masses / max(self.masses.sum(), 1e-300))
        exponents = self.log_moment - self.tilt * self.values
        masses = self.masses * np.exp(np.minimum(exponents, LARGEST))
        faded = self.masses * np.exp(np.minimum(exponents + middle - self.values, LARGEST))
        return _from_each_on(masses), _from_each_on(faded), middle

    def deltas(self, epsilons: Any) -> tuple[Any, Any]:
        """Delta at each of these, and where rounding is nothing to it."""
        import numpy as np

        upper, lower, middle = self._sums
        after = np.searchsorted(self.values, epsilons, side="right")
        some = epsilons - middle < LARGEST
        taken = np.where(some, np.exp(np.clip(np.where(some, epsilons, 0.0) - middle, None, LARGEST)), 0.0)
        error = self.error(epsilons)
        with np.errstate(over="ignore"):  # only where the error is beyond 1
            deltas = np.maximum(upper[after] - taken * lower[after], 0.0)
        return np.minimum(deltas + error, 1.0), error - self.lost <= _NEGLIGIBLE * deltas

    def epsilon(self, delta: float) -> float:
        """The least epsilon, 0 or more, with at most this delta; infinity where there is none."""
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
        # Between the value before and this one delta is upper + error - e^epsilon lower.
        above = float(upper[place] + self.error(self.values[place - 1 : place])[0]) - delta
        found = float(self.values[place])
        if lower[place] > 0 and above > 0 and math.isfinite(above):
            found = min(found, middle + math.log(above) - math.log(float(lower[place])))
        return max(found, 0.0)

    def _delta(self, place: int) -> float:
        return float(self.deltas(self.values[place : place + 1])[0][0])


def _from_each_on(masses: Any) -> Any:
    import numpy as np

    with np.errstate(over="ignore"):
        return np.append(np.cumsum(masses[::-1])[::-1], 0.0)
