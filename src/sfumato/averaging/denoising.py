"""How many of the last kept weights to average, from the weights themselves: neither data nor a search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sfumato._checks import SfumatoError, not_negative, positive_integer

Array = NDArray[np.float64]

CURVATURES_PER_DECADE = 6
SLOWEST = 0.01
"""The least curvature that is told from none takes a hundredth off its distance to the optimum within the run."""
CERTAINTY = 100.0
"""How much more than all distances the number of directions counts, which is known and not measured."""
RELUCTANCE = 0.1
"""How much less than all distances it counts that there is no drift."""


def last_k(distances: Array, steps: Sequence[int], **run: Any) -> int:
    """k, how many of the last kept weights have the mean with the least expected loss.

    Args:
        distances, steps, run: as for `changes_of_loss`.

    **Guarantee.** Post-processing of released weights and of public settings: it costs no privacy.
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
    """By how much the mean of the last k of n kept weights has another loss than the last ones, for k = 1, ..., n.

    Averaging takes noise away and brings back older weights, further from the optimum. Which one outweighs depends on
    the loss's curvature: noise along a steep direction is forgotten within few steps, so that a short window averages
    many independent values of it; along a flat one it walks at random, which no average mends, and matters little. The
    distances between kept weights show the curvature, because the noise is known exactly. Let the loss be quadratic,
    with curvature h along a direction, on which SGD with momentum m does

        v_t = m v_{t-1} + h e_t + xi_t,    e_{t+1} = e_t - rate_t v_t

    from e_0. That is linear: e_t = r_t(h) e_0 + sum_s A_ts(h) xi_s. With S the covariance of the noise over steps,

        E ||theta_i - theta_j||^2 = sum_h  a_h (r_i - r_j)^2  +  n_h (V_ii + V_jj - 2 V_ij),     V(h) = A S A^T

    where n_h >= 0 directions have the curvature h and a_h >= 0 is the square of the distance that they had to go.
    Both are fitted to all pairs of distances, by non-negative least squares of the relative errors (a squared distance
    over many directions is known up to a factor) over a grid of h, with sum_h n_h = d. Then an average with weights w
    has the expected excess loss 1/2 sum_h h (a_h (w r)^2 + n_h w V w).

    A slow drift makes weights part faster than noise does, a slow return makes them part more slowly, and both together
    look like noise alone. So of fits that are nearly as good the one with the least drift is taken: one more equation,
    of a tenth of the weight of all others, says that drift has no share in the largest distance. Against that, drift
    shows where it is more than about ten times what chance makes of the distances, which falls with 1 / sqrt(d).

    Only changes with w are told: distances don't show how far a drift along flat directions has still to go.

    What the model leaves out: batches that are drawn add noise of their own (little beside the private one in most
    runs), clipped gradients lead to the optimum of another objective, and a network's curvature changes on its way.
    Weights from the whole run, about evenly spaced, tell the most; a hundred are plenty.

    Args:
        distances: (n, n), squared, of the kept weights: see `squared_distances`.
        steps: after how many steps each of them stands, rising, n >= 2; 0 is the beginning.
        rates: of all T steps, the learning rate.
        noise: S for one coordinate of a step's gradient, in the unit in which `rates` move the weights (sigma C / B is
            the standard deviation, over C where gradients are divided by C): the variances (T,) of independent noise,
            or the covariance (T, T) of a mechanism's.
        parameters: d, how many numbers are trained.
        momentum: m, in [0, 1), as `torch.optim.SGD` has it. No other optimizer follows the equations above, nor does
            training over aggregates.

    Returns:
        (n,), in the loss's unit, the first of them 0; below 0 where the mean has less loss than the last weights.

    Raises:
        SfumatoError: shapes that don't fit, steps that don't rise, numbers out of range, or weights of no distance.
    """
    places, speeds, covariance = _checked(distances, steps, rates, noise, parameters, momentum)
    curvatures = curvatures_of(speeds, momentum)
    responses = [responses_to(curvature, places, speeds, momentum) for curvature in curvatures]
    kept = np.array([response for response, _ in responses])
    noisy = np.array(
        [rows * covariance @ rows.T if covariance.ndim == 1 else rows @ covariance @ rows.T for _, rows in responses]
    )
    gone, directions = _fitted(distances, kept, noisy, parameters)
    squares = np.einsum("h,hi,hj->ij", gone * curvatures, kept, kept)
    squares += np.einsum("h,hij->ij", directions * curvatures, noisy)
    sums = np.cumsum(np.cumsum(squares[::-1, ::-1], axis=0), axis=1)
    losses = np.diagonal(sums) / (2 * np.arange(1, len(places) + 1) ** 2)
    return losses - losses[0]


def squared_distances(weights: Sequence[Mapping[str, Tensor]]) -> Array:
    """The squared Euclidean distances (n, n) of n sets of weights, in float64."""
    if not weights:
        raise SfumatoError("there are no weights to compare", "give at least two sets of them")
    total = torch.zeros(len(weights), len(weights), dtype=torch.float64)
    for name, last in weights[-1].items():
        # From the last ones, so that what they have in common does not drown the differences.
        moved = torch.stack([(each[name].detach().double() - last.detach().double()).flatten() for each in weights])
        total += (moved @ moved.T).cpu()
    squares = total.diagonal()
    return (squares[:, None] + squares - 2 * total).clamp(min=0).numpy()


def curvatures_of(rates: Array, momentum: float) -> Array:
    """From none over what the whole run hardly moves to what one step brings to the optimum, evenly in logarithms."""
    slowest = SLOWEST * (1 - momentum) / rates.sum()
    fastest = (1 - momentum) / rates.max()
    count = 1 + int(np.ceil(CURVATURES_PER_DECADE * np.log10(fastest / slowest)))
    return np.concatenate([[0.0], np.geomspace(slowest, fastest, count)])


def responses_to(curvature: float, steps: Array, rates: Array, momentum: float) -> tuple[Array, Array]:
    """r (n,) and A (n, T): what e_0 = 1, and what noise of 1 in each step, has become after each of the n steps.

    Backwards from each of them: how e_t moves with the error and with the velocity that a step begins with.
    """
    rows = np.zeros((len(steps), len(rates)))
    of_error, of_velocity = np.zeros(len(steps)), np.zeros(len(steps))
    for step in range(int(steps[-1]) - 1, -1, -1):
        of_error[steps == step + 1] = 1.0
        rows[:, step] = of_next = of_velocity - rates[step] * of_error
        of_error, of_velocity = of_error + curvature * of_next, momentum * of_next
    of_error[steps == 0] = 1.0
    return of_error, rows


def _fitted(distances: Array, kept: Array, noisy: Array, parameters: int) -> tuple[Array, Array]:
    """a_h and n_h, by non-negative least squares over pairs i < j; the last rows are sum_h n_h = d and no drift."""
    from scipy.optimize import nnls

    first, second = np.triu_indices(len(distances), 1)
    went = (kept[:, first] - kept[:, second]) ** 2
    diffused = noisy[:, first, first] + noisy[:, second, second] - 2 * noisy[:, first, second]
    relative = np.concatenate([went, diffused]).T / distances[first, second][:, None]
    weight = CERTAINTY * np.sqrt(len(relative))
    count = np.repeat([0.0, weight / parameters], len(kept))
    drift = np.zeros(2 * len(kept))
    drift[: len(kept)] = RELUCTANCE * np.sqrt(len(relative)) * went.max(axis=1) / distances.max()
    matrix, wanted = np.vstack([relative, count, drift]), np.append(np.ones(len(relative)), [weight, 0.0])
    scales = np.linalg.norm(matrix, axis=0)
    scales[scales == 0] = 1.0
    orthogonal, triangular = np.linalg.qr(matrix / scales)
    found = nnls(triangular, orthogonal.T @ wanted, maxiter=100 * len(scales))[0] / scales
    return found[: len(kept)], found[len(kept) :]


def _checked(
    distances: Any, steps: Sequence[int], rates: Sequence[float], noise: Any, parameters: int, momentum: float
) -> tuple[Array, Array, Array]:
    """Steps, rates and the noise's covariance as arrays, or a refusal."""
    positive_integer("parameters", parameters, remedy="give the number of trained parameters")
    if not_negative("momentum", momentum, remedy="give a number in [0, 1)") >= 1:
        raise SfumatoError(f"momentum must be below 1, got {momentum!r}", "give a number in [0, 1)")
    places, speeds, covariance = np.asarray(steps), np.asarray(rates, np.float64), np.asarray(noise, np.float64)
    n, total = len(places), len(speeds)
    if n < 2 or places.dtype.kind != "i" or places[0] < 0 or places[-1] > total or np.any(np.diff(places) < 1):
        raise SfumatoError(
            f"steps must be two at least and rise from 0 to {total} at most, got {list(steps)!r}",
            "give the number of steps before each of the kept weights",
        )
    if not (speeds > 0).all() or not np.isfinite(speeds).all():
        raise SfumatoError("rates must be above 0", "give the learning rate of each step")
    if covariance.shape not in ((total,), (total, total)) or not np.isfinite(covariance).all():
        raise SfumatoError(
            f"noise must hold {total} variances or a covariance of {total} steps, got the shape {covariance.shape}",
            "give one for each of the rates",
        )
    found = np.asarray(distances)
    apart = found[~np.eye(n, dtype=bool)] if found.shape == (n, n) else found
    if found.shape != (n, n) or not np.isfinite(apart).all() or not (apart > 0).all():
        raise SfumatoError(
            f"distances must be those of {n} different, finite weights, got the shape {found.shape} or some that are "
            "equal or not finite",
            "give what squared_distances finds for the weights after these steps",
        )
    return places, speeds, covariance
