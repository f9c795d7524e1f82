"""The objective of an optimal factorisation, with its gradient, and the search for its minimum."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.optimize import NoConvergence, minimize, newton_krylov

from sfumato.privacy.factorisation.mean_square import Array, MeanSquare
from sfumato.privacy.factorisation.toeplitz import squared_sensitivity
from sfumato.privacy.factorisation.workload import Workload

Loss = Callable[[Array], tuple[float, Array]]

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

    def __call__(self, coefficients: Array, inverse: Array) -> tuple[float, Array, Array]:
        """The loss and its gradients in the coefficients of C and, treated as independent, in those of C^-1."""
        square, by_inverse = self.mean_square(inverse)
        sensitivity, by_coefficients = squared_sensitivity(coefficients, self.workload)
        value = 0.5 * (np.log(square) + np.log(sensitivity))
        return float(value), 0.5 * by_coefficients / sensitivity, 0.5 * by_inverse / square


def minimise_loss(loss: Loss, start: Array, *, tolerance: float, reach: float | None = None) -> tuple[float, Array]:
    """The least loss that L-BFGS finds from the start, and the point where it is.

    Args:
        tolerance: the search ends when a step lowers the loss by less.
        reach: parameters stay within [-reach, reach].
    """
    options = {"maxiter": 2000, "maxfun": 4000, "maxcor": 20, "ftol": tolerance, "gtol": 1e-10}
    bounds = None if reach is None else [(-reach, reach)] * len(start)
    result = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    return float(result.fun), result.x


def polished(loss: Loss, point: Array) -> Array:
    """The zero of the gradient near an approximate minimum, to rounding error, so that the last digits are stable."""
    with np.errstate(all="ignore"):
        try:
            closer = newton_krylov(lambda where: loss(where)[1], point, f_tol=1e-12, maxiter=8)
        except (NoConvergence, ValueError, ArithmeticError):
            return point
        return closer if np.abs(loss(closer)[1]).max() <= np.abs(loss(point)[1]).max() else point


def rounded(values: Array) -> tuple[float, ...]:
    """The values to nine significant digits, which the same search reproduces on any machine."""
    return tuple(float(f"{value:.9g}") for value in values)
