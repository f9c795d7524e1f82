"""The optimal banded Toeplitz factorisation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.optimize import NoConvergence, isotonic_regression, newton_krylov
from scipy.signal import fftconvolve

from sfumato._checks import positive_integer, within
from sfumato.privacy.factorisation.toeplitz import (
    Array,
    MeanSquare,
    Workload,
    inverse,
    square_root,
    squared_sensitivity,
)

Loss = Callable[[Array], tuple[float, Array]]

_EVALUATIONS = 1000
_SETTLED = 1e-14
_REMEMBERED = 8
_PIECES = 12
"""The number of straight pieces that approximate a schedule. More would lower the error by less than 1e-6."""


class NoiseObjective:
    """ln(||A C^-1||_F / sqrt(n) * S): the noise in the weights over all steps, at equal privacy.

    For prefix sums it is the objective of Choquette-Choo et al. 2023 (arXiv 2306.08153) and McMahan et al. 2024 (arXiv
    2408.08868). It is invariant to scaling C.
    """

    def __init__(self, workload: Workload):
        self.workload = workload
        self.mean_square = MeanSquare(workload, pieces=_PIECES)

    def __call__(self, coefficients: Array) -> tuple[float, Array]:
        """The loss and its gradient. As C C^-1 = 1, a change dC changes C^-1 by -C^-1 dC C^-1."""
        n = self.workload.steps
        inverted = inverse(coefficients, n)
        square, by_inverse = self.mean_square(inverted)
        sensitivity, by_coefficients = squared_sensitivity(coefficients, self.workload)
        twice = fftconvolve(inverted, inverted)[:n]
        through_inverse = fftconvolve(0.5 * by_inverse / square, twice[::-1])[n - 1 : n - 1 + len(coefficients)]
        value = 0.5 * (np.log(square) + np.log(sensitivity))
        return float(value), 0.5 * by_coefficients / sensitivity - through_inverse


def optimal_banded(workload: Workload, bands: int) -> tuple[float, ...]:
    """The coefficients c_0 = 1, c_1, ..., c_{bands-1} of the banded Toeplitz C with the least error.

    Choquette-Choo et al. 2023 (arXiv 2306.08153), Toeplitz as in McKenna 2024 (arXiv 2405.15913), extended to any
    momentum, schedule and separation.

    Args:
        workload: the workload to optimise for; `separation = steps` for the amplified mechanism.
        bands: number of coefficients, from 1 to the number of steps.

    **Guarantee.** The coefficients are non-negative and non-increasing, as the sensitivity formula requires; so C^-1 is
    stable as well (Enestroem and Kakeya). They have nine significant digits, which the same call reproduces on any
    machine.
    """
    within("bands", positive_integer("bands", bands), None, workload.steps, remedy="give at most one for each step")
    loss = NoiseObjective(workload)
    coefficients = _polished(loss, _projected_descent(loss, square_root(bands, momentum=workload.momentum)))
    return tuple(float(f"{value:.9g}") for value in coefficients)


def _falling(coefficients: Array) -> Array:
    """The nearest coefficients that are non-increasing from c_0 = 1 and at least 0."""
    rest = isotonic_regression(coefficients[1:], increasing=False).x if len(coefficients) > 1 else coefficients[1:]
    return np.append(1.0, np.clip(rest, 0.0, 1.0))


def _projected_descent(loss: Loss, point: Array) -> Array:
    """The least loss over non-increasing coefficients: spectral projected gradients (Birgin, Martinez and Raydan 2000).

    Near the minimum the loss has a similar curvature in all coefficients, so a few dozen evaluations are enough.
    """
    value, gradient = loss(point)
    values, length = [value], 1.0
    for _ in range(_EVALUATIONS):
        direction = _falling(point - length * gradient) - point
        slope = float(gradient @ direction)
        if slope > -_SETTLED:
            break
        share = 1.0
        while (tried := loss(point + share * direction))[0] > max(values[-_REMEMBERED:]) + 1e-4 * share * slope:
            share /= 2
            if share < 1e-9:
                return point
        step, turn = share * direction, tried[1] - gradient
        point, (value, gradient) = point + step, tried
        values.append(value)
        length = float(np.clip(step @ step / max(step @ turn, 1e-300), 1e-6, 1e3))
    return point


def _polished(loss: Loss, point: Array) -> Array:
    """The polished point. Coefficients that are equal, 1 or 0 stay so, and the order is kept."""
    level = np.append(0, np.cumsum(np.diff(point) < 0))
    firsts = np.flatnonzero(np.diff(level, prepend=-1))
    free = (point[firsts] > 0) & (firsts > 0)
    if not free.any():
        return point

    def whole(values: Array) -> Array:
        by_level = point[firsts]
        by_level[free] = values
        return by_level[level]

    def on_levels(values: Array) -> tuple[float, Array]:
        value, gradient = loss(whole(values))
        return value, np.add.reduceat(gradient, firsts)[free]

    result = whole(_zero_of_gradient(on_levels, point[firsts][free]))
    return result if np.array_equal(_falling(result), result) else point


def _zero_of_gradient(loss: Loss, point: Array) -> Array:
    """The zero of the gradient near an approximate minimum, to rounding error, so that the last digits are stable."""
    with np.errstate(all="ignore"):
        try:
            closer = newton_krylov(lambda where: loss(where)[1], point, f_tol=1e-12, maxiter=8)
        except (NoConvergence, ValueError, ArithmeticError):
            return point
        return closer if np.abs(loss(closer)[1]).max() <= np.abs(loss(point)[1]).max() else point
