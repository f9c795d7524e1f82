"""One-sided bounds on a binomial probability from a count (Clopper and Pearson 1934), exact for every n."""

from __future__ import annotations

from typing import overload

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betaincinv


@overload
def at_most(count: int, trials: int, alpha: float) -> float: ...
@overload
def at_most(count: ArrayLike, trials: ArrayLike, alpha: float) -> np.ndarray: ...
def at_most(count, trials, alpha):
    """Upper bound on the success probability after `count` successes in `trials`; fails with probability <= alpha.

    >>> round(at_most(0, 500, 0.025), 6)
    0.007351
    """
    count, trials = np.asarray(count, float), np.asarray(trials, float)
    inner = np.minimum(count, trials - 1)  # if every trial succeeded, the only upper bound is 1
    bound = np.where(count < trials, betaincinv(inner + 1, trials - inner, 1 - alpha), 1.0)
    return bound if bound.ndim else float(bound)


@overload
def at_least(count: int, trials: int, alpha: float) -> float: ...
@overload
def at_least(count: ArrayLike, trials: ArrayLike, alpha: float) -> np.ndarray: ...
def at_least(count, trials, alpha):
    """Lower bound on the success probability after `count` successes in `trials`; fails with probability <= alpha."""
    bound = 1 - np.asarray(at_most(np.asarray(trials) - np.asarray(count), trials, alpha))
    return bound if bound.ndim else float(bound)
