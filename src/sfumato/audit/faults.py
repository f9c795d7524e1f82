"""How small a fault an audit would have noticed."""

from __future__ import annotations

from collections.abc import Callable

from scipy.stats import binom

from sfumato.audit.search import last

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
