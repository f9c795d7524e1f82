"""Bisection, and the smallest fault that an audit can detect."""

from __future__ import annotations

import math
from collections.abc import Callable

from scipy.stats import binom


def bisect(holds: Callable[[float], bool], *, limit: float = 1e6, precision: float = 1e-12) -> float:
    """The largest number >= 0 at which a condition holds, approximated from below; 0 if it never holds.

    Args:
        holds: a condition that is true up to some number and false above it.
        limit: the search ends here. If the condition still holds, the result is infinity.
        precision: relative precision of the result.

    >>> round(bisect(lambda x: x * x < 2), 9)
    1.414213562
    """
    if not holds(0.0):
        return 0.0
    lower, upper = 0.0, 1.0
    while holds(upper):
        if upper >= limit:
            return math.inf
        lower, upper = upper, 2 * upper
    while upper - lower > precision * upper:
        middle = (lower + upper) / 2
        lower, upper = (middle, upper) if holds(middle) else (lower, middle)
    return lower


NINE_OF_TEN = 0.9
LEAST = 0.01
"""The smallest factor on the noise that is searched."""


def smallest_fault(noticed: Callable[[float], bool]) -> float | None:
    """The largest factor below 1 on the noise that is detected; None if there is none.

    Args:
        noticed: whether, with the noise multiplied by this factor, the audit contradicts the promise in nine of ten
            repetitions. If it does for one factor, it does for every smaller one.
    """
    if not noticed(LEAST):
        return None
    return LEAST + bisect(lambda more: LEAST + more < 1 and noticed(LEAST + more), precision=1e-4)


def count_quantile(trials: int, probability: float) -> int:
    """A quantile of the count: neither of two counts exceeds it in nine of ten repetitions."""
    return int(binom.ppf(1 - (1 - NINE_OF_TEN) / 2, trials, probability))
