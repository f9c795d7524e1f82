"""Privacy losses on a grid from deltas at its points: connect-the-dots (Doroshenko et al. 2022, algorithm 1)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from dp_accounting.pld import pld_pmf


class Dots(pld_pmf.DensePLDPmf):
    """Masses of which each is exact up to a rounding of itself, whatever the width: see `dots`."""


def dots(low: int, deltas: Any, width: float) -> Dots:
    """The losses, multiples of the width from `low` on, whose delta is this at each of them and never below between.

    A mass is (s_1 - s_0) / (e^width - 1) - s_0 with s_0 and s_1 the changes of delta before and after it, whose
    difference is exact where they are near each other. dp-accounting has (s_1 - s_0 e^width) / (e^width - 1), which
    rounds s_0 and divides that by the width: ten million steps add this up.
    """
    deltas = np.maximum.accumulate(np.clip(deltas, 0, 1)[::-1])[::-1]  # rounding must not make it rise
    if len(deltas) == 1:
        return Dots(width, low, 1 - deltas, float(deltas[0]), True)
    steps = np.diff(deltas)
    masses = np.zeros(len(deltas))
    masses[0] = 1 - deltas[0] + steps[0] / math.expm1(width)
    masses[1:-1] = np.diff(steps) / math.expm1(width) - steps[:-1]
    masses[-1] = steps[-1] / math.expm1(-width)
    return Dots(width, low, np.maximum(masses, 0), float(deltas[-1]), True)
