"""Lower triangular Toeplitz factorisations of a workload: square root, inverse, sensitivity, noise, the best bands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.fft import irfft, rfft
from numpy.typing import NDArray
from scipy.fft import next_fast_len
from scipy.linalg import toeplitz
from scipy.optimize import NoConvergence, isotonic_regression, newton_krylov
from scipy.signal import fftconvolve, lfilter

from sfumato._checks import SfumatoError, below_one, positive, positive_integer

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Heavy-ball SGD over a schedule, and how often one unit takes part.

    With g_t the (noisy) gradient of step t = 0, ..., n - 1, as in `torch.optim.SGD` without Nesterov momentum:

        v_t = momentum v_{t-1} + g_t        w_t = w_{t-1} - rates_t v_t

    so the weights after step t move by -sum_s A[t, s] g_s, where A[t, s] = sum_{u=s..t} rates_u momentum^(u-s). Without
    momentum and at a constant rate A is the matrix of prefix sums.

    Args:
        steps: n.
        separation: b, the least number of steps between two participations of one unit. A unit takes part once if b
            is at least n. For an amplified mechanism, whose theorem needs columns of norm 1, use `separation = steps`.
        momentum: in [0, 1).
        rates: n factors of the learning rate: the schedule with its warm-up and cooldown. None for a constant rate.

    >>> Workload(steps=1000, separation=128).participations
    8
    """

    steps: int
    separation: int
    momentum: float = 0.0
    rates: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        positive_integer(steps=self.steps)
        positive_integer(separation=self.separation, remedy="give the least number of steps between participations")
        below_one(momentum=self.momentum)
        if self.rates is None:
            return
        if not isinstance(self.rates, tuple) or len(self.rates) != self.steps:
            actual = f"{len(self.rates)} of them" if isinstance(self.rates, tuple) else f"{type(self.rates).__name__}"
            raise SfumatoError(f"rates must be a tuple of {self.steps} factors, got {actual}", "give one for each step")
        for rate in self.rates:
            positive(rates=rate, remedy="give factors above 0, one for each step")

    @property
    def participations(self) -> int:
        """k = ceil(n / b), the most participations of one unit."""
        return -(-self.steps // self.separation)


@dataclass(frozen=True, kw_only=True)
class NoiseInWeights:
    """Standard deviation of the noise in one weight, for independent numbers of standard deviation 1 before C^-1.

    In a run it is multiplied by sigma * C * learning rate / batch size. To compare mechanisms at equal privacy,
    multiply it by their sensitivity.

    Args:
        all_steps: root mean square over the weights after every step, ||A C^-1||_F / sqrt(n).
        final: standard deviation in the weights after the last step.
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


class MeanSquare:
    """||A C^-1||_F^2 / n for any lower triangular Toeplitz C^-1.

    Let f be the coefficients of C^-1 after momentum. Then A C^-1 [t, s] = sum_{u=s..t} rate_u f_{u-s}, and the sum of
    squares is f^T K f with

        K[i, j] = sum_{u>=j} rate_{u-j+i} rate_u (n - u)        for i <= j, and symmetric.

    For a schedule of straight pieces, where piece q begins at step J_q with a jump and a bend,

        rate_u = sum_{J_q<=u} jump_q + bend_q (u - J_q)
        h(x) = sum_{u>=x} rate_u (n - u)        e(x) = sum_{u>=x} (u - x) rate_u (n - u)
        K[i, j] = rate_i h(j) + slope_i e(j) + sum_{J_q>i} k_q(j - i)
        k_q(d) = jump_q h(J_q + d) + bend_q e(J_q + d)

    so K f needs running sums and, for each piece after the first, one convolution.

    Args:
        pieces: the most straight pieces that approximate the schedule.

    **Exactness.** Exact up to rounding for schedules with at most this many pieces. Other schedules are split where
    a chord has the largest error, until there are that many: for a cosine in 64 pieces, the root mean square is off by
    6e-5.
    """

    def __init__(self, workload: Workload, *, pieces: int = 64):
        n, self.momentum = workload.steps, workload.momentum
        first, self.rates, self.slopes = _piecewise_linear(rates_of(workload), pieces)
        bends = np.diff(self.slopes[first], prepend=0.0)
        ended = self.rates[first[1:] - 1] + self.slopes[first[1:] - 1]
        jumps = self.rates[first] - np.append(0.0, ended)
        self.h = _reverse_cumsum(self.rates * np.arange(n, 0, -1.0))
        self.e = _reverse_cumsum(self.h) - self.h
        shifted = np.minimum(first[1:, None] + np.arange(n), n)
        kernels = jumps[1:, None] * np.append(self.h, 0.0)[shifted] + bends[1:, None] * np.append(self.e, 0.0)[shifted]
        self.before = np.arange(n) < first[1:, None]
        self.length = next_fast_len(2 * n, real=True)
        self.spectra = rfft(kernels, self.length) if len(kernels) else None
        self.diagonal = self.rates * self.h + self.slopes * self.e + (self.before * kernels[:, :1]).sum(0)

    def __call__(self, inverse: Array) -> tuple[float, Array]:
        """The mean square and its gradient in the n coefficients of C^-1."""
        n = len(inverse)
        response = with_momentum(inverse, self.momentum)
        product = self._upper(response) + self._lower(response) - self.diagonal * response
        gradient = with_momentum(product[::-1], self.momentum)[::-1]
        return float(response @ product) / n, 2 * gradient / n

    def _upper(self, f: Array) -> Array:
        """sum_{j>=i} K[i, j] f_j for every i."""
        product = self.rates * _reverse_cumsum(self.h * f) + self.slopes * _reverse_cumsum(self.e * f)
        if self.spectra is not None:
            correlated = irfft(self.spectra.conj() * rfft(f, self.length), self.length)
            product += (self.before * correlated[:, : len(f)]).sum(0)
        return product

    def _lower(self, f: Array) -> Array:
        """sum_{i<=j} K[i, j] f_i for every j."""
        product = self.h * np.cumsum(self.rates * f) + self.e * np.cumsum(self.slopes * f)
        if self.spectra is not None:
            convolved = (self.spectra * rfft(self.before * f, self.length)).sum(0)
            product += irfft(convolved, self.length)[: len(f)]
        return product


def _reverse_cumsum(values: Array) -> Array:
    return np.cumsum(values[::-1])[::-1]


def _piecewise_linear(rates: Array, pieces: int) -> tuple[NDArray[np.int64], Array, Array]:
    """The first steps of the pieces, and the polygon's rate and slope at every step. Pieces are split at their largest
    error."""
    first = [0]
    line, slopes = _lines(rates, first)
    while len(first) < pieces and (missed := np.abs(rates - line)).max() > 1e-12 * rates.max():
        first = sorted({*first, int(missed.argmax())})
        line, slopes = _lines(rates, first)
    return np.array(first), line, slopes


def _lines(rates: Array, first: list[int]) -> tuple[Array, Array]:
    """The straight line from the first to the last rate of every piece."""
    lengths = np.diff([*first, len(rates)])
    begin = rates[first]
    slopes = (rates[np.array(first) + lengths - 1] - begin) / np.maximum(lengths - 1, 1)
    along = np.arange(len(rates)) - np.repeat(first, lengths)
    return np.repeat(begin, lengths) + np.repeat(slopes, lengths) * along, np.repeat(slopes, lengths)


def square_root(bands: int, *, momentum: float = 0.0) -> Array:
    """The first coefficients of A^(1/2): c_0 = 1, c_k = c_{k-1} (2k - 1) / 2k, times the same in powers of momentum.

    For prefix sums, see Fichtenberger et al. 2022 (arXiv 2202.11205). For momentum and a limited number of bands, see
    Kalinin and Lampert 2024 (arXiv 2405.13763, theorem 1): 1 / sqrt((1 - x)(1 - momentum x)) as a power series.

    >>> square_root(4).tolist()
    [1.0, 0.5, 0.375, 0.3125]
    """
    k = np.arange(1, positive_integer(bands=bands))
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
            "use those of square_root or optimal_banded",
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
    positive_integer(most=workload.steps, bands=bands, remedy="give at most one for each step")
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
