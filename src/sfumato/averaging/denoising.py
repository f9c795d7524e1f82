"""Chooses how many of the last kept weights to average, from the weights alone, without data or a search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sfumato._checks import SfumatoError, below_one, positive_integer

Array = NDArray[np.float64]

CURVATURES_PER_DECADE = 6
SLOWEST = 0.01
"""Relative progress to the optimum over the whole run at the smallest positive curvature of the grid."""
CERTAINTY = 100.0
"""Weight of the equation sum_h n_h = d, relative to all distances. d is known exactly."""
RELUCTANCE = 0.1
"""Weight of the equation "no drift", relative to all distances."""


def last_k(distances: Array, steps: Sequence[int], **run: Any) -> int:
    """The k for which the mean of the last k kept weights has the smallest expected loss.

    Args:
        distances, steps, run: as for `changes_of_loss`.

    **Guarantee.** Post-processing of released weights and public settings. It costs no privacy.
    """
    return 1 + int(np.argmin(changes_of_loss(distances, steps, **run)))


def changes_of_loss(
    distances: Array,
    steps: Sequence[int],
    *,
    rates: Sequence[float],
    noise: Array | Sequence[float],
    parameters: int,
    momentum: float = 0.0,
) -> Array:
    """Change of the expected loss when the last k of n kept weights are averaged, for k = 1, ..., n.

    Averaging reduces noise but includes older weights, which are farther from the optimum. The balance depends on the
    curvature of the loss. Along a steep direction noise decays within a few steps, so a short window averages many
    independent values. Along a flat direction it is a random walk, which averaging does not reduce and which matters
    little. The noise is known exactly, so the distances between kept weights reveal the curvature. Let the loss be
    quadratic with curvature h along a direction. SGD with momentum m follows

        v_t = m v_{t-1} + h e_t + xi_t,    e_{t+1} = e_t - rate_t v_t

    from e_0. This is linear: e_t = r_t(h) e_0 + sum_s A_ts(h) xi_s. With S the covariance of the noise over steps,

        E ||theta_i - theta_j||^2 = sum_h  a_h (r_i - r_j)^2  +  n_h (V_ii + V_jj - 2 V_ij),     V(h) = A S A^T

    where n_h >= 0 is the number of directions with curvature h, and a_h >= 0 their squared initial distance from the
    optimum. Both are fitted to all pairs of distances over a grid of h, by non-negative least squares on relative
    errors (a squared distance over many directions is known up to a factor), with sum_h n_h = d. An average with
    weights w has the expected excess loss 1/2 sum_h h (a_h (w r)^2 + n_h w V w).

    A slow drift separates weights faster than noise does, a slow return more slowly; together they look like noise
    alone. Among nearly equal fits the one with the least drift is preferred: one more equation, with a tenth of the
    weight of all others, sets the share of drift in the largest distance to zero. Drift is still detected if it
    exceeds about ten times the random error of the distances, which falls with 1 / sqrt(d).

    Only differences between averages are estimated. The distances do not show how far a drift along flat directions
    still has to go.

    The model ignores three effects: batch sampling adds noise (small compared to the private noise in most runs),
    clipped gradients lead to the optimum of another objective, and a network's curvature changes during training.
    Weights spaced about evenly over the whole run are most informative; a hundred are plenty.

    Args:
        distances: (n, n), squared distances of the kept weights: see `squared_distances`.
        steps: number of steps before each of the kept weights, ascending, n >= 2; 0 for the initial weights.
        rates: the learning rate of each of the T steps.
        noise: S for one coordinate of a step's gradient, in the unit in which `rates` move the weights (the standard
            deviation is sigma C / B, divided by C if gradients are divided by C): variances (T,) for independent noise,
            or the covariance (T, T) of a mechanism.
        parameters: d, the number of trained scalars.
        momentum: m, in [0, 1), as in `torch.optim.SGD`. Other optimizers and training over aggregates do not follow
            the equations above.

    Returns:
        (n,), in units of the loss. The first entry is 0; a negative entry means less loss than the last weights.

    Raises:
        SfumatoError: shapes that don't match, steps that are not ascending, values out of range, or equal weights.
    """
    kept_at, lr, covariance = _checked(distances, steps, rates, noise, parameters, momentum)
    curvatures = curvatures_of(lr, momentum)
    responses = [responses_to(curvature, kept_at, lr, momentum) for curvature in curvatures]
    decays = np.array([decay for decay, _ in responses])
    variances = np.array(
        [rows * covariance @ rows.T if covariance.ndim == 1 else rows @ covariance @ rows.T for _, rows in responses]
    )
    drifts, directions = _fitted(distances, decays, variances, parameters)
    squares = np.einsum("h,hi,hj->ij", drifts * curvatures, decays, decays)
    squares += np.einsum("h,hij->ij", directions * curvatures, variances)
    sums = np.cumsum(np.cumsum(squares[::-1, ::-1], axis=0), axis=1)
    losses = np.diagonal(sums) / (2 * np.arange(1, len(kept_at) + 1) ** 2)
    return losses - losses[0]


def squared_distances(weights: Sequence[Mapping[str, Tensor]]) -> Array:
    """Squared Euclidean distances (n, n) between n sets of weights, in float64."""
    total = torch.zeros(len(weights), len(weights), dtype=torch.float64)
    for name, last in weights[-1].items():
        # Relative to the last weights, to avoid cancellation.
        offsets = torch.stack([(point[name].detach().double() - last.detach().double()).flatten() for point in weights])
        total += (offsets @ offsets.T).cpu()
    squares = total.diagonal()
    return (squares[:, None] + squares - 2 * total).clamp(min=0).numpy()


def curvatures_of(rates: Array, momentum: float) -> Array:
    """A grid of curvatures: 0, then log-spaced from hardly any progress in the run to convergence in one step."""
    slowest = SLOWEST * (1 - momentum) / rates.sum()
    fastest = (1 - momentum) / rates.max()
    count = 1 + int(np.ceil(CURVATURES_PER_DECADE * np.log10(fastest / slowest)))
    return np.concatenate([[0.0], np.geomspace(slowest, fastest, count)])


def responses_to(curvature: float, steps: Array, rates: Array, momentum: float) -> tuple[Array, Array]:
    """r (n,) and A (n, T): the response of the error after each of the n steps to e_0 and to the noise of each step.

    A backward recursion over steps, with the derivatives of e_t in the error and the velocity before each step.
    """
    rows = np.zeros((len(steps), len(rates)))
    d_error, d_velocity = np.zeros(len(steps)), np.zeros(len(steps))
    for step in range(int(steps[-1]) - 1, -1, -1):
        d_error[steps == step + 1] = 1.0
        rows[:, step] = d_next = d_velocity - rates[step] * d_error
        d_error, d_velocity = d_error + curvature * d_next, momentum * d_next
    d_error[steps == 0] = 1.0
    return d_error, rows


def _fitted(distances: Array, decays: Array, variances: Array, parameters: int) -> tuple[Array, Array]:
    """a_h and n_h, by non-negative least squares over pairs i < j. The last two rows are sum_h n_h = d and no drift."""
    from scipy.optimize import nnls

    first, second = np.triu_indices(len(distances), 1)
    drifted = (decays[:, first] - decays[:, second]) ** 2
    diffused = variances[:, first, first] + variances[:, second, second] - 2 * variances[:, first, second]
    relative = np.concatenate([drifted, diffused]).T / distances[first, second][:, None]
    weight = CERTAINTY * np.sqrt(len(relative))
    count = np.repeat([0.0, weight / parameters], len(decays))
    no_drift = np.zeros(2 * len(decays))
    no_drift[: len(decays)] = RELUCTANCE * np.sqrt(len(relative)) * drifted.max(axis=1) / distances.max()
    matrix, target = np.vstack([relative, count, no_drift]), np.append(np.ones(len(relative)), [weight, 0.0])
    scales = np.linalg.norm(matrix, axis=0)
    scales[scales == 0] = 1.0
    orthogonal, triangular = np.linalg.qr(matrix / scales)
    solution = nnls(triangular, orthogonal.T @ target, maxiter=100 * len(scales))[0] / scales
    return solution[: len(decays)], solution[len(decays) :]


def _checked(
    distances: Any, steps: Sequence[int], rates: Sequence[float], noise: Any, parameters: int, momentum: float
) -> tuple[Array, Array, Array]:
    """Returns steps, rates and the covariance of the noise as arrays; refuses invalid arguments."""
    positive_integer(parameters=parameters, remedy="give the number of trained parameters")
    below_one(momentum=momentum)
    kept_at, lr, covariance = np.asarray(steps), np.asarray(rates, np.float64), np.asarray(noise, np.float64)
    n, total = len(kept_at), len(lr)
    if n < 2 or kept_at.dtype.kind != "i" or kept_at[0] < 0 or kept_at[-1] > total or np.any(np.diff(kept_at) < 1):
        raise SfumatoError(
            f"steps must be at least two ascending numbers from 0 to {total}, got {list(steps)!r}",
            "pass the number of steps before each of the kept weights",
        )
    finite = np.isfinite(lr).all() and np.isfinite(covariance).all()
    if not finite or not (lr > 0).all() or covariance.shape not in ((total,), (total, total)):
        raise SfumatoError(
            f"rates must be above 0, and noise must hold their {total} variances or a covariance, got the shape "
            f"{covariance.shape}",
            "pass the learning rate and the variance of each step",
        )
    matrix = np.asarray(distances)
    pairs = matrix[~np.eye(n, dtype=bool)] if matrix.shape == (n, n) else matrix
    if matrix.shape != (n, n) or not np.isfinite(pairs).all() or not (pairs > 0).all():
        raise SfumatoError(
            f"distances must be those of {n} different, finite weights; got shape {matrix.shape}, or weights that are "
            "equal or not finite",
            "pass the squared_distances of the weights after these steps",
        )
    return kept_at, lr, covariance
