"""Lower triangular Toeplitz matrices by their first column: square root, inverse, sensitivity, noise."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.linalg import toeplitz
from scipy.signal import fftconvolve, lfilter

from sfumato._checks import SfumatoError, positive_integer
from sfumato.privacy.factorisation.mean_square import Array, MeanSquare, NoiseInWeights, rows
from sfumato.privacy.factorisation.workload import Workload


def square_root(bands: int, *, momentum: float = 0.0) -> Array:
    """The first coefficients of A^(1/2): c_0 = 1, c_k = c_{k-1} (2k - 1) / 2k, times the same in powers of momentum.

    For prefix sums, see Fichtenberger et al. 2022 (arXiv 2202.11205). For momentum and a limited number of bands, see
    Kalinin and Lampert 2024 (arXiv 2405.13763, theorem 1): 1 / sqrt((1 - x)(1 - momentum x)) as a power series.

    >>> square_root(4).tolist()
    [1.0, 0.5, 0.375, 0.3125]
    """
    k = np.arange(1, positive_integer("bands", bands))
    root = np.append(1.0, np.cumprod((2 * k - 1) / (2 * k)))
    return np.convolve(root, root * momentum ** np.arange(bands))[:bands] if momentum else root


def inverse(coefficients: Array | Sequence[float], steps: int) -> Array:
    """The first n coefficients of C^-1, which turns independent numbers into correlated noise.

    >>> inverse([1.0, 0.5], 4).tolist()
    [1.0, -0.5, 0.25, -0.125]
    """
    impulse = np.zeros(steps)
    impulse[0] = 1.0
    return lfilter([1.0], np.asarray(coefficients), impulse)  # pyright: ignore[reportReturnType]


def sensitivity(coefficients: Array | Sequence[float], workload: Workload) -> float:
    """S: how far one unit moves C g, in units of the clipping norm.

    **Guarantee.** For a unit that takes part in steps at least b apart with gradients of norm at most 1, if C is lower
    triangular Toeplitz with non-negative, non-increasing coefficients: participation at 0, b, 2b, ... is the worst case
    (Kalinin and Lampert 2024, arXiv 2405.13763, theorem 2). Other coefficients are refused.
    """
    column = np.asarray(coefficients, dtype=np.float64)[: workload.steps]
    if not (np.isfinite(column).all() and np.all(column >= 0) and np.all(np.diff(column) <= 0)):
        raise SfumatoError(
            f"coefficients must be at least 0 and must not increase, got {column[:8].tolist()} ...",
            "use those of square_root, optimal_banded or optimal_blt",
        )
    return float(np.sqrt(squared_sensitivity(column, workload)[0]))


def squared_sensitivity(coefficients: Array, workload: Workload) -> tuple[float, Array]:
    """S^2 = || sum_{j<k} shift^(jb) c ||^2 and its gradient in the coefficients."""
    n, b = workload.steps, min(workload.separation, workload.steps)
    shifted = np.zeros((workload.participations, b))
    shifted.flat[: len(coefficients)] = coefficients
    moved = np.cumsum(shifted, axis=0)
    moved.flat[n:] = 0.0
    gradient = 2 * np.cumsum(moved[::-1], axis=0)[::-1].ravel()[: len(coefficients)]
    return float(moved.ravel() @ moved.ravel()), gradient


def toeplitz_noise(workload: Workload, inverse: Array) -> NoiseInWeights:
    """The noise that C^-1 leaves in the weights.

    Args:
        inverse: the first n coefficients of C^-1; (1, 0, 0, ...) for independent noise.
    """
    if len(inverse) != workload.steps:
        raise SfumatoError(
            f"inverse must hold {workload.steps} coefficients, one for each step, got {len(inverse)}",
            "compute them for all steps of the workload",
        )
    mean_square, _ = MeanSquare(workload)(inverse)
    (last,) = rows(workload, [workload.steps - 1])
    final = fftconvolve(last[::-1], inverse)[: workload.steps]
    return NoiseInWeights(all_steps=float(np.sqrt(mean_square)), final=float(np.linalg.norm(final)))


def toeplitz_variances(combinations: Array, inverse: Array) -> Array:
    """The variances (n,) of linear combinations (n, T) of the noise C^-1 z: the squared norms of their rows times C^-1.

    Args:
        combinations: the coefficient of each step's noise.
        inverse: the first T coefficients of C^-1.
    """
    of_numbers = fftconvolve(combinations[:, ::-1], inverse[None], axes=1)[:, : combinations.shape[1]]
    return (of_numbers**2).sum(1)


def toeplitz_covariance(inverse: Array) -> Array:
    """The covariance of the noise over steps, C^-1 C^-T, (n, n)."""
    matrix = np.tril(toeplitz(inverse))
    return matrix @ matrix.T
