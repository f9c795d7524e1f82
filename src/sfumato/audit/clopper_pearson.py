"""What a count says of a probability: one-sided bounds by Clopper and Pearson (1934), exact for any n."""

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
    """The probability behind `count` of `trials` is at most this, but for a probability of alpha.

    >>> round(at_most(0, 500, 0.025), 6)
    0.007351
    """
    count, trials = np.asarray(count, float), np.asarray(trials, float)
    inner = np.minimum(count, trials - 1)  # of trials of trials nothing is known but 1
    found = np.where(count < trials, betaincinv(inner + 1, trials - inner, 1 - alpha), 1.0)
    return found if found.ndim else float(found)


@overload
def at_least(count: int, trials: int, alpha: float) -> float: ...
@overload
def at_least(count: ArrayLike, trials: ArrayLike, alpha: float) -> np.ndarray: ...
def at_least(count, trials, alpha):
    """The probability behind `count` of `trials` is at least this, but for a probability of alpha."""
    found = 1 - np.asarray(at_most(np.asarray(trials) - np.asarray(count), trials, alpha))
    return found if found.ndim else float(found)
