"""From the noise of the steps to the noise in the weights: the rows of the workload's matrix A."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

from sfumato.privacy.factorisation.workload import Workload

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class NoiseInWeights:
    """Standard deviation of the noise in one weight, for independent numbers of standard deviation 1 before C^-1.

    In a run it is multiplied by sigma * C * learning rate / batch size. At equal privacy mechanisms compare by it times
    their sensitivity.

    Args:
        all_steps: root mean square over the weights after every step, ||A C^-1||_F / sqrt(n).
        final: in the weights after the last step.
    """

    all_steps: float
    final: float


def rates_of(workload: Workload) -> Array:
    """The n factors of the learning rate."""
    return np.ones(workload.steps) if workload.rates is None else np.array(workload.rates)


def with_momentum(values: Array, momentum: float) -> Array:
    """v_t = momentum v_{t-1} + g_t along the last axis."""
    return lfilter([1.0], [1.0, -momentum], values)  # pyright: ignore[reportReturnType]


def rows(workload: Workload, steps: Sequence[int]) -> Array:
    """The rows of A for these steps, (rows, n): A[t, s] = rates_s + momentum A[t, s + 1] for s <= t, else 0."""
    until = np.arange(workload.steps) <= np.asarray(steps)[:, None]
    return with_momentum((until * rates_of(workload))[:, ::-1], workload.momentum)[:, ::-1]
