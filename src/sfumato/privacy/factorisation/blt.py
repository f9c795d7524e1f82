"""The optimal buffered linear Toeplitz factorisation (BLT)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.signal import lfilter
from scipy.special import expit

from sfumato._checks import SfumatoError, positive_integer
from sfumato.privacy.factorisation.mean_square import Array
from sfumato.privacy.factorisation.objective import NoiseObjective, minimise_loss, polished, rounded
from sfumato.privacy.factorisation.workload import Workload
from sfumato.privacy.mechanism.toeplitz import MOST_BUFFERS

_WORTH_A_BUFFER = 1e-4
_REACH = 16.0
"""Ratios of gaps stay below expit(16) = 1 - 1e-7, so that decays stay distinct."""


def blt_coefficients(scales: Sequence[float], decays: Sequence[float], steps: int) -> Array:
    """The first n coefficients of C: c_0 = 1, c_k = sum_j scale_j decay_j^(k-1).

    >>> blt_coefficients([0.5, 0.25], [0.5, 0.0], 4).tolist()
    [1.0, 0.75, 0.25, 0.125]
    """
    powers = np.asarray(decays) ** np.arange(steps - 1)[:, None]
    return np.append(1.0, powers @ np.asarray(scales))


def blt_inverse(scales: Sequence[float], decays: Sequence[float], steps: int) -> Array:
    """The first n coefficients of C^-1, computed by the buffers: O(n) for each buffer.

    >>> blt_inverse([0.5], [0.5], 4).tolist()
    [1.0, -0.5, 0.0, 0.0]
    """
    poles = np.poly(decays)
    zeros = poles.copy()
    for index, scale in enumerate(scales):
        zeros[1:] += scale * np.poly(np.delete(decays, index))
    return _times(list(poles), list(zeros), np.eye(1, steps)[0])


def optimal_blt(workload: Workload, buffers: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The scales and decays of the BLT with the least error, the slowest decay first.

    Dvijotham et al. 2024 (arXiv 2404.16706) and McMahan et al. 2024 (arXiv 2408.08868), extended to any momentum,
    schedule and separation. As a power series C = prod_j (1 - zero_j x) / (1 - decay_j x), and C^-1 is its reciprocal.
    Decays and zeros alternate below 1, decay_1 > zero_1 > decay_2 > ... > 0. This means that all scales of C are
    positive and those of C^-1 negative (McMahan and Pillutla 2025, arXiv 2504.21413, theorem 1), and that both are
    stable.

    Args:
        workload: the workload to optimise for.
        buffers: the largest number of buffers, from 1 to 4; each takes as much memory as the model. A buffer that would
            lower the error by less than one part in ten thousand is left out.

    **Guarantee.** All scales are positive, all decays in (0, 1) and c_1 < 1, so the coefficients of C are non-negative
    and non-increasing, as the sensitivity formula requires. The same call gives the same numbers.
    """
    if positive_integer("buffers", buffers) > MOST_BUFFERS:
        raise SfumatoError(f"buffers must be from 1 to {MOST_BUFFERS}, got {buffers}", "give fewer buffers")
    objective = NoiseObjective(workload)

    def loss(point: Array) -> tuple[float, Array]:
        return _loss(objective, point)

    error, point = np.inf, np.empty(0)
    for count in range(1, buffers + 1):
        lower, other = minimise_loss(loss, _start(workload, count), tolerance=1e-10, reach=_REACH)
        if lower > error - _WORTH_A_BUFFER:
            break
        error, point = lower, other
    _, point = minimise_loss(loss, point, tolerance=1e-15, reach=_REACH)
    gaps, _ = _gaps(_polished(objective, point))
    decays = 1 - gaps[::2]
    return rounded(_scales(gaps[::2], gaps[1::2])), rounded(decays)


def _start(workload: Workload, buffers: int) -> Array:
    """Gaps evenly spaced on a logarithmic scale between 1 / (1 + the steps between two participations) and 1."""
    shortest = 1 / (1 + min(workload.separation, workload.steps))
    gaps = shortest ** (1 - (np.arange(2 * buffers) + 0.5) / (2 * buffers))
    ratios = gaps / np.append(gaps[1:], 1.0)
    return np.log(ratios / (1 - ratios))


def _gaps(point: Array) -> tuple[Array, Array]:
    """1 - decay_1 < 1 - zero_1 < 1 - decay_2 < ... < 1, and the ratio of each to the next: the expit of the point."""
    ratios = expit(point)
    return np.cumprod(ratios[::-1])[::-1], ratios


def _scales(decay_gaps: Array, zero_gaps: Array) -> Array:
    """scale_i = prod_j (decay_i - zero_j) / prod_{j != i} (decay_i - decay_j): the residues of C."""
    apart = decay_gaps - decay_gaps[:, None]
    np.fill_diagonal(apart, 1.0)
    return np.prod((zero_gaps - decay_gaps[:, None]) / apart, axis=1)


def _loss(objective: NoiseObjective, point: Array) -> tuple[float, Array]:
    """The objective as an unconstrained function of the logits of the gaps' ratios, and its gradient.

    ln C = sum_j ln(1 - zero_j x) - ln(1 - decay_j x), so a change of decay_j changes C by C x / (1 - decay_j x), and
    C^-1 by the negative of the same filter applied to C^-1. A change of zero_j does the opposite.
    """
    gaps, ratios = _gaps(point)
    roots = 1 - gaps
    coefficients = inverse = np.eye(1, objective.workload.steps)[0]
    for decay, zero in roots.reshape(-1, 2):
        coefficients = _times([1.0, -zero], [1.0, -decay], coefficients)
        inverse = _times([1.0, -decay], [1.0, -zero], inverse)
    value, by_coefficients, by_inverse = objective(coefficients, inverse)
    by_root = np.empty_like(roots)
    for index, root in enumerate(roots):
        moved, back = _times([0.0, 1.0], [1.0, -root], np.stack([coefficients, inverse]))
        by_root[index] = (-1) ** index * (by_coefficients @ moved - by_inverse @ back)
    return value, np.cumsum(-by_root * gaps) * (1 - ratios)


def _times(numerator: list[float], denominator: list[float], series: Array) -> Array:
    """A power series times a quotient of polynomials."""
    return lfilter(numerator, denominator, series)  # pyright: ignore[reportReturnType]


def _polished(objective: NoiseObjective, point: Array) -> Array:
    """The point polished in the parameters that are not at the bounds."""
    inside = np.abs(point) < _REACH

    def whole(values: Array) -> Array:
        moved = point.copy()
        moved[inside] = values
        return moved

    def loss(values: Array) -> tuple[float, Array]:
        value, gradient = _loss(objective, whole(values))
        return value, gradient[inside]

    result = whole(polished(loss, point[inside])) if inside.any() else point
    return result if np.all(np.abs(result) <= _REACH) else point
