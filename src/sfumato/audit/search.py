"""The one search of this room: where something that holds at first ceases to."""

from __future__ import annotations

import math
from collections.abc import Callable


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
