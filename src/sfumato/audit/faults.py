"""How small a fault an audit would have noticed."""

from __future__ import annotations

from collections.abc import Callable

from scipy.stats import binom

NINE_OF_TEN = 0.9


def smallest_fault(shown: Callable[[float], float], nominal: float) -> float | None:
    """The largest factor on the noise, below 1, at which `shown(factor)` is above `nominal`; None where there is none.

    Args:
        shown: {factor on the standard deviation of the noise: the bound that the observations would then have shown in
            nine of ten repetitions}; falls as the factor grows.
        nominal: what is promised, in the same unit.
    """
    lower, upper = 0.01, 1.0
    if not shown(lower) > nominal:
        return None
    for _ in range(30):
        middle = (lower + upper) / 2
        lower, upper = (middle, upper) if shown(middle) > nominal else (lower, middle)
    return lower


def unlucky(trials: int, probability: float, events: int = 2) -> int:
    """A count that is not exceeded in nine of ten repetitions, shared evenly among so many events."""
    return int(binom.ppf(1 - (1 - NINE_OF_TEN) / events, trials, probability))
