"""Searches: where something that holds at first ceases to, and how small a fault an audit would notice."""

from __future__ import annotations

import math
from collections.abc import Callable

from scipy.stats import binom


def last(holds: Callable[[float], bool], *, limit: float = 1e6, precision: float = 1e-12) -> float:
    """The last number, from 0 on, at which it holds, from below; 0 where it holds nowhere.

    Args:
        holds: up to some number, and no longer beyond.
        limit: infinity where it still holds there.
        precision: of the number, relative to it.

    >>> round(last(lambda x: x * x < 2), 9)
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
"""Less noise than this share of the nominal is not looked for."""


def smallest_fault(noticed: Callable[[float], bool]) -> float | None:
    """The largest factor on the noise, below 1, that is noticed; None where there is none.

    Args:
        noticed: whether the observations, in nine of ten repetitions, would show more than was promised with the noise
            times this factor; where one factor is noticed, so is a smaller one.
    """
    if not noticed(LEAST):
        return None
    return LEAST + last(lambda more: LEAST + more < 1 and noticed(LEAST + more), precision=1e-4)


def unlucky(trials: int, probability: float, events: int = 2) -> int:
    """A count that is not exceeded in nine of ten repetitions, shared evenly among so many events."""
    return int(binom.ppf(1 - (1 - NINE_OF_TEN) / events, trials, probability))
