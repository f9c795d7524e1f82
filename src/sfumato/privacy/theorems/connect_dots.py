"""Privacy losses on a grid from the deltas at its points: connect-the-dots (Doroshenko et al. 2022, algorithm 1)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from dp_accounting.pld import pld_pmf


class ConnectedDots(pld_pmf.DensePLDPmf):
    """Masses that are each exact up to their own rounding, for any width: see `connect_dots`."""


def connect_dots(low: int, deltas: Any, width: float) -> ConnectedDots:
    """Losses on multiples of the width from `low` on. Their delta equals `deltas` there and is never too small between.

    A mass is (s_1 - s_0) / (e^width - 1) - s_0, where s_0 and s_1 are the changes of delta before and after it. Their
    difference is exact if they are close. dp-accounting computes (s_1 - s_0 e^width) / (e^width - 1), which rounds s_0
    and divides the error by the width: over ten million steps this adds up.
    """
    deltas = np.maximum.accumulate(np.clip(deltas, 0, 1)[::-1])[::-1]  # rounding must not make delta increase
    if len(deltas) == 1:
        return ConnectedDots(width, low, 1 - deltas, float(deltas[0]), True)
    steps = np.diff(deltas)
    masses = np.zeros(len(deltas))
    masses[0] = 1 - deltas[0] + steps[0] / math.expm1(width)
    masses[1:-1] = np.diff(steps) / math.expm1(width) - steps[:-1]
    masses[-1] = steps[-1] / math.expm1(-width)
    return ConnectedDots(width, low, np.maximum(masses, 0), float(deltas[-1]), True)
