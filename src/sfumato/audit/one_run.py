"""Audit from one training run, with canaries included by independent fair coins (Steinke et al. 2023).

Canaries are scored from released values. The k_in highest are guessed to be in and the k_out lowest to be out; both
numbers are fixed in advance, and there is no guess for the others. If (epsilon, delta) holds, the observed number of
correct guesses, or more, has probability at most p. Every epsilon with p below one minus the confidence is refuted.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri
from scipy.stats import binom

from sfumato._checks import SfumatoError, fraction, not_negative, positive
from sfumato.audit.bisection import bisect, count_quantile, smallest_fault
from sfumato.audit.bound import Bound
from sfumato.audit.curve import mu_of

LARGEST = 500.0
"""A bound above this epsilon is reported as infinity."""
Guesses = tuple[int, int]


def one_run(
    scores: ArrayLike,
    included: ArrayLike,
    *,
    delta: float,
    confidence: float = 0.95,
    guesses: Guesses | None = None,
    nominal_epsilon: float | None = None,
) -> Bound:
    """Lower bound on epsilon from one training run (Steinke et al. 2023, theorem 5.2 and algorithm 1).

    Args:
        scores: (m,) one score per canary, computed from released values only; a higher score suggests inclusion.
        included: (m,) whether the canary's coin included it.
        delta: delta of the promise.
        confidence: confidence of the bound.
        guesses: (k_in, k_out), the number of canaries guessed in and out, fixed before any score is known. The default
            is a tenth of the canaries each.
        nominal_epsilon: the promised epsilon, for the smallest detectable fault.

    **Guarantee.** The bound exceeds the true epsilon at delta, for adding or removing one canary, with probability at
    most 1 - confidence, if the coins are fair and independent, and the scores depend on them only through the release.
    """
    return _audited(
        scores, included, delta, confidence, guesses, nominal_epsilon, epsilon_by_guesses, "one run (Steinke et al.)"
    )


def one_run_gaussian(
    scores: ArrayLike,
    included: ArrayLike,
    *,
    delta: float,
    confidence: float = 0.95,
    guesses: Guesses | None = None,
    nominal_epsilon: float | None = None,
) -> Bound:
    """Lower bound on epsilon from one run that assumes a Gaussian trade-off curve (arXiv 2410.22235, algorithm 3).

    The arguments are those of `one_run`. The bound is about twice as large, and says nothing about a mechanism with
    another curve.
    """
    return _audited(
        scores,
        included,
        delta,
        confidence,
        guesses,
        nominal_epsilon,
        epsilon_by_guesses_gaussian,
        "one run (f-DP)",
        assumption="a Gaussian trade-off curve",
    )


def _audited(
    scores: ArrayLike,
    included: ArrayLike,
    delta: float,
    confidence: float,
    guesses: Guesses | None,
    nominal_epsilon: float | None,
    by_guesses: Callable[[int, int, int, float, float], float],
    method: str,
    assumption: str | None = None,
) -> Bound:
    values, coins = _canaries(scores, included)
    delta, confidence = not_negative("delta", delta), fraction("confidence", confidence)
    canaries, pair = len(values), _guesses(guesses, len(values))
    guessed, right = sum(pair), right_guesses(values, coins, pair)

    def bound(right: int) -> float:
        return by_guesses(canaries, guessed, right, delta, confidence)

    def expected_bound(factor: float) -> float:
        """The bound for Gaussian scores when the noise is multiplied by this factor."""
        return bound(guessed - count_quantile(guessed, 1 - _precision(mu / factor, guessed / canaries), events=1))

    fault = None
    if nominal_epsilon is not None:
        mu = mu_of(positive("nominal_epsilon", nominal_epsilon), max(delta, 1e-12))
        fault = smallest_fault(lambda factor: expected_bound(factor) > nominal_epsilon)
    return Bound(
        epsilon=bound(right),
        delta=delta,
        confidence=confidence,
        method=method,
        assumption=assumption,
        at_most=bound(guessed),
        smallest_fault=fault,
        observations={
            "canaries": canaries,
            "included": int(coins.sum()),
            "guessed_in": pair[0],
            "guessed_out": pair[1],
            "right": right,
        },
    )


def right_guesses(scores: np.ndarray, included: np.ndarray, guesses: Guesses) -> int:
    """The number of correct guesses. Among equal scores the earlier one counts as higher."""
    order = np.argsort(-scores, kind="stable")
    high, low = order[: guesses[0]], order[len(order) - guesses[1] :]
    return int(included[high].sum() + (~included[low]).sum())


def epsilon_by_guesses(canaries: int, guesses: int, right: int, delta: float, confidence: float) -> float:
    """The largest epsilon refuted at delta by `right` correct guesses.

    >>> round(epsilon_by_guesses(1000, 100, 100, 1e-5, 0.95), 4)
    3.4654
    """
    return bisect(lambda epsilon: p_value(canaries, guesses, right, epsilon, delta) < 1 - confidence, limit=LARGEST)


def p_value(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """Upper bound on the probability of at least `right` correct guesses under (epsilon, delta).

    The number of correct guesses is at most Bin(r, q) + F with q = 1 / (1 + e^-epsilon) and F >= 0 of mean at most
    2 m delta (theorem 5.2). The worst distribution of F has two points. For 2 m delta below 1 the result is the paper's
    beta + 2 m delta max_i P[v > Bin >= v - i] / i.
    """
    tail = binom.sf(right - 1 - np.arange(right + 1), guesses, 1 / (1 + np.exp(-epsilon)))  # P[Bin >= v - i]
    mean = 2 * canaries * delta
    if mean == 0 or right == 0:
        return float(tail[0])
    if mean >= right:
        return 1.0
    low, high = np.arange(int(mean) + 1), np.arange(int(mean) + 1, right + 1)
    weight = (mean - low[:, None]) / (high - low[:, None])
    return float((tail[low, None] + weight * (tail[high] - tail[low, None])).max())


def epsilon_by_guesses_gaussian(canaries: int, guesses: int, right: int, delta: float, confidence: float) -> float:
    """The largest epsilon refuted at delta by `right` correct guesses, for a mechanism with a Gaussian curve.

    >>> round(epsilon_by_guesses_gaussian(1000, 100, 90, 1e-5, 0.95), 4)
    2.4564
    """
    return bisect(partial(_gaussian_refuted, canaries, guesses, right, delta, 1 - confidence), limit=LARGEST)


def _gaussian_refuted(canaries: int, guesses: int, right: int, delta: float, alpha: float, epsilon: float) -> bool:
    """Whether epsilon is refuted: arXiv 2410.22235, algorithm 3, with the Gaussian curve through (epsilon, delta)."""
    mu = mu_of(epsilon, delta)
    r, h = alpha * right / canaries, alpha * (guesses - right) / canaries
    for i in range(right - 1, -1, -1):
        higher = max(h, float(ndtr(ndtri(r) - mu)))
        if higher == h:
            break
        r, h = min(1.0, r + i / (guesses - i) * (higher - h)), higher
    return r + h > guesses / canaries


def _precision(mu: float, guessed: float) -> float:
    """The fraction of correct guesses for an even mixture of N(0, 1) and N(mu, 1), of which `guessed` is guessed."""

    def too_many(distance: float) -> bool:
        """Whether more than `guessed` of the mixture is farther than this distance from the middle."""
        between = ndtr(distance - mu / 2) - ndtr(-distance - mu / 2)  # the same for both components, by symmetry
        return bool(1 - between > guessed)

    distance = bisect(too_many)
    right, wrong = ndtr(mu / 2 - distance), ndtr(-mu / 2 - distance)
    return float(right / max(right + wrong, 1e-300))


def _canaries(scores: ArrayLike, included: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    values, coins = np.asarray(scores, float), np.asarray(included)
    if values.ndim != 1 or values.shape != coins.shape or not values.size or np.isnan(values).any():
        raise SfumatoError(
            f"scores must be one number for each canary, got shape {values.shape} for {coins.shape} canaries with "
            f"{int(np.isnan(values).sum())} NaN",
            "pass one score for each coin",
        )
    return values, coins.astype(bool)


def _guesses(guesses: Guesses | None, canaries: int) -> Guesses:
    tenth = max(1, canaries // 10)
    pair = (tenth, min(tenth, canaries - tenth)) if guesses is None else guesses
    if len(pair) != 2 or min(pair) < 0 or not 0 < sum(pair) <= canaries:
        raise SfumatoError(
            f"guesses must be (k_in, k_out), together 1 to {canaries}, got {pair}",
            "guess fewer, or audit with more canaries",
        )
    return pair
