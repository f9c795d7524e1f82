"""After which steps a run keeps its weights, for averages, ensembles and intervals that are made of them afterwards."""

from __future__ import annotations

import numpy as np

from sfumato._checks import positive_integer

MOST = 20
ROOM = 64 << 20
"""Bytes that weights kept by rule take together, at most."""
FEWEST = 4
"""By rule a run keeps at least so many or none: fewer say nothing of how they vary."""


def number_by_rule(size: int) -> int:
    """How many weights of so many bytes are kept: 20, or what fits into 64 MiB, or none where that is below 4.

    >>> number_by_rule(245_000), number_by_rule(11 << 20), number_by_rule(17 << 20)
    (20, 5, 0)
    """
    fitting = min(MOST, ROOM // positive_integer("size", size))
    return fitting if fitting >= FEWEST else 0


def kept_steps(steps: int, count: int) -> tuple[int, ...]:
    """After which of T steps weights are kept: half of them after the very last ones, half spaced before those.

    The spaced ones lie evenly in the second half of the run, whose first half is left to converge.

    Args:
        steps: T.
        count: how many are kept; all of the run's steps where there are fewer.

    Returns:
        Numbers of steps taken, from 1 to T, ascending; T is among them unless none is kept.

    >>> kept_steps(1000, 8)
    (500, 624, 748, 872, 997, 998, 999, 1000)
    >>> kept_steps(3, 8), kept_steps(1000, 0)
    ((1, 2, 3), ())
    """
    positive_integer("steps", steps)
    count = min(count, steps)
    if count == 0:
        return ()
    last = range(steps - (count + 1) // 2 + 1, steps + 1)
    begin = min(max(1, steps // 2), last.start - count // 2)
    spaced = np.linspace(begin, last.start, count // 2, endpoint=False).astype(int)
    return (*spaced.tolist(), *last)
