"""How small a fault an audit would have noticed."""

from __future__ import annotations

from collections.abc import Callable

from scipy.stats import binom

from sfumato.audit.search import last

NINE_OF_TEN = 0.9
LEAST = 0.01
"""Less noise than this share of the nominal is not looked for."""


def smallest_fault(shown: Callable[[float], float], nominal: float) -> float | None:
    """The largest factor on the noise, below 1, at which `shown(factor)` is above `nominal`; None where there is none.

    Args:
        shown: {factor on the standard deviation of the noise: the bound that the observations would then have shown in
            nine of ten repetitions}; falls as the factor grows.
        nominal: what is promised, in the same unit.
    """
    if not shown(LEAST) > nominal:
        return None
    return LEAST + last(lambda more: LEAST + more < 1 and shown(LEAST + more) > nominal)


def unlucky(trials: int, probability: float, events: int = 2) -> int:
    """A count that is not exceeded in nine of ten repetitions, shared evenly among so many events."""
    return int(binom.ppf(1 - (1 - NINE_OF_TEN) / events, trials, probability))
