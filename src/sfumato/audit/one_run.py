"""One run: many canaries, each in or out by a coin of its own, and guesses of which were in (Steinke et al. 2023).

Canaries are scored by something that was released, the k_in highest are guessed in and the k_out lowest out, both
numbers fixed beforehand, and of the others nothing is said. So many right guesses have a probability of at most p under
a promise of epsilon; every epsilon with p below one minus the confidence is refuted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri
from scipy.stats import binom

from sfumato._checks import SfumatoError, fraction, not_negative, positive, positive_integer
from sfumato.audit.bound import Bound
from sfumato.audit.curve import mu_of
from sfumato.audit.faults import smallest_fault, unlucky

LARGEST = 1e3
Guesses = tuple[int, int]
Refuted = Callable[[float], bool]


def one_run(
    scores: ArrayLike,
    included: ArrayLike,
    *,
    delta: float,
    confidence: float = 0.95,
    guesses: Guesses | Iterable[Guesses] | None = None,
    nominal_epsilon: float | None = None,
) -> Bound:
    """A lower bound of epsilon from one training run (Steinke et al. 2023, theorem 5.2 and algorithm 1).

    Args:
        scores: (m,) one for each canary, from released values alone; higher where it looks as if it were in.
        included: (m,) whether its coin put it in.
        delta: of the promise.
        confidence: of the bound, in all.
        guesses: (k_in, k_out), how many are guessed in and out, fixed before any score was seen; or several such
            pairs, each of which gets its share of one minus the confidence. A tenth of the canaries each by default.
        nominal_epsilon: what is promised, for the smallest fault that would have been noticed.

    **Guarantee.** The bound exceeds the true epsilon at delta, of adding or removing one canary, with probability at
    most 1 - confidence, for coins that are fair, independent and not known to whatever computed the scores except
    through what was released.
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
    guesses: Guesses | Iterable[Guesses] | None = None,
    nominal_epsilon: float | None = None,
) -> Bound:
    """The same by the bound of arXiv 2410.22235 (algorithm 3), which presumes a Gaussian trade-off curve.

    Args as of `one_run`. It shows about twice as much, and nothing of a mechanism that has another curve.
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


def _audited(scores, included, delta, confidence, guesses, nominal_epsilon, by_guesses, method, assumption=None):
    scores, included = _canaries(scores, included)
    delta, alpha = not_negative("delta", delta), 1 - fraction("confidence", confidence)
    canaries, pairs = len(scores), _pairs(guesses, len(scores))
    share = alpha / len(pairs)
    found = [
        (by_guesses(canaries, sum(pair), right, delta, 1 - share), right, pair)
        for pair in pairs
        for right in [right_guesses(scores, included, pair)]
    ]
    epsilon, right, pair = max(found)
    guessed = sum(pair)

    def shown(factor: float) -> float:
        """What so many guesses would show of Gaussian scores."""
        wrong = unlucky(guessed, 1 - _precision(mu / factor, guessed / canaries), events=1)
        return by_guesses(canaries, guessed, guessed - wrong, delta, 1 - share)

    fault = None
    if nominal_epsilon is not None:
        mu = mu_of(positive("nominal_epsilon", nominal_epsilon), max(delta, 1e-12))
        fault = smallest_fault(shown, nominal_epsilon)
    return Bound(
        epsilon=epsilon,
        delta=delta,
        confidence=confidence,
        method=method,
        assumption=assumption,
        at_most=max(by_guesses(canaries, sum(pair), sum(pair), delta, 1 - share) for pair in pairs),
        smallest_fault=fault,
        observations={
            "canaries": canaries,
            "included": int(included.sum()),
            "guessed_in": pair[0],
            "guessed_out": pair[1],
            "right": right,
            "tests": len(pairs),
        },
    )


def right_guesses(scores: np.ndarray, included: np.ndarray, guesses: Guesses) -> int:
    """How many of the k_in highest scores were in, and of the k_out lowest out; of equal ones the earlier is higher."""
    order = np.argsort(-scores, kind="stable")
    high, low = order[: guesses[0]], order[len(order) - guesses[1] :]
    return int(included[high].sum() + (~included[low]).sum())


def epsilon_by_guesses(canaries: int, guesses: int, right: int, delta: float, confidence: float) -> float:
    """The largest epsilon that `right` of so many guesses refute at delta.

    >>> round(epsilon_by_guesses(1000, 100, 100, 1e-5, 0.95), 4)
    3.4654
    """
    return _largest(lambda epsilon: p_value(canaries, guesses, right, epsilon, delta) < 1 - confidence)


def p_value(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """The probability of so many right guesses is at most this under (epsilon, delta).

    The number of right guesses is at most Bin(r, q) + F, q = 1 / (1 + e^-epsilon), F >= 0 of mean at most 2 m delta
    (theorem 5.2); the most that allows for F is a mixture of two points. For 2 m delta below 1 that is the paper's
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
    """The largest epsilon that `right` of so many guesses refute at delta, for a mechanism with a Gaussian curve.

    >>> round(epsilon_by_guesses_gaussian(1000, 100, 90, 1e-5, 0.95), 4)
    2.4564
    """
    return _largest(partial(_gaussian_refuted, canaries, guesses, right, delta, 1 - confidence))


def _gaussian_refuted(canaries: int, guesses: int, right: int, delta: float, alpha: float, epsilon: float) -> bool:
    """Whether the claim falls: arXiv 2410.22235, algorithm 3, with the curve of the mu that belongs to epsilon."""
    mu = mu_of(epsilon, delta)
    r, h = alpha * right / canaries, alpha * (guesses - right) / canaries
    for i in range(right - 1, -1, -1):
        higher = max(h, float(ndtr(ndtri(r) - mu)))
        if higher == h:
            break
        r, h = min(1.0, r + i / (guesses - i) * (higher - h)), higher
    return r + h > guesses / canaries


def _largest(refuted: Refuted) -> float:
    """The end of the epsilons that are refuted, from 0 on."""
    if not refuted(0.0):
        return 0.0
    lower, upper = 0.0, 1.0
    while refuted(upper):
        lower, upper = upper, 2 * upper
        if upper > LARGEST:
            return lower
    while upper - lower > 1e-8 * max(1.0, upper):
        middle = (lower + upper) / 2
        lower, upper = (middle, upper) if refuted(middle) else (lower, middle)
    return lower


def _precision(mu: float, guessed: float) -> float:
    """The share of right guesses, when so large a share of N(0, 1) and N(mu, 1), mixed evenly, is guessed."""
    lower, upper = 0.0, 40.0 + mu
    for _ in range(60):
        distance = (lower + upper) / 2  # of the thresholds from the middle
        rest = (
            ndtr(distance - mu / 2) - ndtr(-distance - mu / 2) + ndtr(distance + mu / 2) - ndtr(mu / 2 - distance)
        ) / 2
        lower, upper = (lower, distance) if 1 - rest < guessed else (distance, upper)
    right, wrong = ndtr(mu / 2 - lower), ndtr(-mu / 2 - lower)
    return float(right / max(right + wrong, 1e-300))


def _canaries(scores: ArrayLike, included: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    found, coins = np.asarray(scores, float), np.asarray(included)
    if found.ndim != 1 or found.shape != coins.shape or not found.size or np.isnan(found).any():
        raise SfumatoError(
            f"scores must be one number for each canary, got shape {found.shape} for {coins.shape} canaries with "
            f"{int(np.isnan(found).sum())} NaN",
            "give as many scores as coins",
        )
    return found, coins.astype(bool)


def _pairs(guesses: Guesses | Iterable[Guesses] | None, canaries: int) -> list[Guesses]:
    if guesses is None:
        tenth = max(1, canaries // 10)
        guesses = (tenth, min(tenth, canaries - tenth))
    listed = list(guesses)
    pairs = [tuple(listed)] if listed and not isinstance(listed[0], Iterable) else [tuple(pair) for pair in listed]  # type: ignore[arg-type]
    for pair in pairs:
        if len(pair) != 2 or min(pair) < 0 or not 0 < sum(pair) <= canaries:
            raise SfumatoError(
                f"guesses must be (k_in, k_out), together 1 to {canaries}, got {pair}",
                "guess fewer, or audit with more canaries",
            )
    if not pairs:
        raise SfumatoError("guesses must name at least one pair, got none", "give (k_in, k_out)")
    positive_integer("canaries", canaries)
    return pairs  # type: ignore[return-value]
