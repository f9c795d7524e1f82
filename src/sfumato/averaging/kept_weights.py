"""The steps after which a run keeps its weights, for later averages, ensembles and intervals."""

from __future__ import annotations

import numpy as np

from sfumato._checks import positive_integer

MOST = 20
ROOM = 64 << 20
"""Default limit on the total size of the kept weights, in bytes."""
FEWEST = 4
"""By default a run keeps at least this many weights or none. Fewer do not show their variance."""


def kept_count_by_rule(size: int) -> int:
    """The default number of kept weights of `size` bytes each: at most 20 and at most 64 MiB, or 0 if fewer than 4 fit.

    >>> kept_count_by_rule(245_000), kept_count_by_rule(11 << 20), kept_count_by_rule(17 << 20)
    (20, 5, 0)
    """
    fitting = min(MOST, ROOM // positive_integer("size", size))
    return fitting if fitting >= FEWEST else 0


def kept_steps(steps: int, count: int) -> tuple[int, ...]:
    """The steps after which weights are kept: half of them the very last steps, half spaced before these.

    The spaced steps lie evenly in the second half of the run. The first half is left for convergence.

    Args:
        steps: T, the number of steps of the run.
        count: number of weights to keep; every step's weights if the run has fewer steps.

    Returns:
        Numbers of completed steps, from 1 to T, ascending. The last is T, unless no weights are kept.

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
