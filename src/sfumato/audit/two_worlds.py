"""Audit from models trained with an example and without it (De et al. 2022, appendix A.2; Tramer et al. 2022).

A test between the two worlds with true positive rate TPR and false positive rate FPR refutes every epsilon below
ln((TPR - delta) / FPR) (Hall et al. 2013), and every epsilon below ln((TNR - delta) / FNR).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr

from sfumato._checks import SfumatoError, fraction, not_negative, positive, positive_integer
from sfumato.audit.bound import Bound, at_least, at_most, count_quantile, mu_of, smallest_fault


def two_worlds(
    scores_in: ArrayLike,
    scores_out: ArrayLike,
    *,
    delta: float,
    confidence: float = 0.95,
    threshold: float | Iterable[float] | None = None,
    choosing: int | None = None,
    nominal_epsilon: float | None = None,
) -> Bound:
    """Lower bound on epsilon from independent scores of both worlds.

    A score at or above the threshold is classified as "in". By default the threshold and the direction are chosen on
    some of the scores and the bound is computed on the others. Thresholds that were fixed before any score was known
    can be passed instead. All of them are tried in both directions, each with an equal share of one minus the
    confidence.

    Args:
        scores_in: (n,) one score per model trained with the example, in an order independent of the scores.
        scores_out: (n',) one score per model trained without it, likewise.
        delta: delta of the promise.
        confidence: confidence of the bound, over all thresholds.
        threshold: one or several thresholds fixed in advance; None to choose one from the scores.
        choosing: number of scores of each world, taken from the start, on which the threshold is chosen. The default is
            half of the smaller world.
        nominal_epsilon: the promised epsilon, for the smallest detectable fault.

    **Guarantee.** The bound exceeds the mechanism's true epsilon at delta with probability at most 1 - confidence, if
    the scores are independent, identically distributed within a world, and functions of the release only.
    """
    world_in, world_out = _scores("scores_in", scores_in), _scores("scores_out", scores_out)
    delta, alpha = not_negative("delta", delta), 1 - fraction("confidence", confidence)
    if threshold is None:
        first = _reserved(choosing, min(len(world_in), len(world_out)))
        tests = [_best_threshold(world_in[:first], world_out[:first], delta, alpha)]
        world_in, world_out = world_in[first:], world_out[first:]
    else:
        thresholds = np.unique(_scores("threshold", np.atleast_1d(np.asarray(threshold, float))))
        tests = [(float(value), above) for value in thresholds for above in (True, False)]
    share = alpha / len(tests)
    bounds = [(_bound(*_counts(world_in, world_out, *test), delta, share), test) for test in tests]
    epsilon, (value, above) = max(bounds)
    misses, positives, false_alarms, negatives = _counts(world_in, world_out, value, above)

    def expected_bound(factor: float) -> float:
        """The bound for Gaussian scores and the middle threshold when the noise is multiplied by this factor."""
        error = float(ndtr(-mu / factor / 2))
        return _bound(
            count_quantile(positives, error), positives, count_quantile(negatives, error), negatives, delta, share
        )

    fault = None
    if nominal_epsilon is not None:
        mu = mu_of(positive("nominal_epsilon", nominal_epsilon), max(delta, 1e-12))
        fault = smallest_fault(lambda factor: expected_bound(factor) > nominal_epsilon)
    return Bound(
        epsilon=epsilon,
        delta=delta,
        confidence=confidence,
        method="two worlds, Clopper-Pearson",
        at_most=_bound(0, positives, 0, negatives, delta, share),
        smallest_fault=fault,
        observations={
            "models_in": len(world_in),
            "models_out": len(world_out),
            "threshold": value,
            "in_taken_for_out": misses if above else false_alarms,
            "out_taken_for_in": false_alarms if above else misses,
            "tests": len(tests),
        },
    )


def largest_provable(runs: int, delta: float, confidence: float = 0.95) -> float:
    """The largest epsilon that `runs` models in each world can prove, reached if every one is classified correctly.

    >>> round(largest_provable(500, 1e-5), 2), round(largest_provable(1000, 1e-5), 2)
    (4.91, 5.6)
    """
    runs, alpha = positive_integer("runs", runs), 1 - fraction("confidence", confidence)
    return _bound(0, runs, 0, runs, not_negative("delta", delta), alpha)


def _scores(name: str, values: ArrayLike) -> np.ndarray:
    scores = np.asarray(values, float)
    if scores.ndim != 1 or not scores.size or np.isnan(scores).any():
        raise SfumatoError(
            f"{name} must be a list of numbers, got shape {scores.shape} with {int(np.isnan(scores).sum())} NaN",
            "pass one number for each model",
        )
    return scores


def _reserved(choosing: int | None, fewest: int) -> int:
    first = fewest // 2 if choosing is None else positive_integer("choosing", choosing)
    if not 0 < first < fewest:
        raise SfumatoError(
            f"choosing must leave scores in each world, got {first} of {fewest}", "pass more scores, or a threshold"
        )
    return first


def _counts(world_in: np.ndarray, world_out: np.ndarray, threshold: float, above: bool) -> tuple[int, int, int, int]:
    """Misses, positives, false alarms and negatives. Without `above`, scores below the threshold are the positives."""
    low, high = int((world_in < threshold).sum()), int((world_out >= threshold).sum())
    return (low, len(world_in), high, len(world_out)) if above else (high, len(world_out), low, len(world_in))


def _bound(misses: Any, positives: int, false_alarms: Any, negatives: int, delta: float, alpha: float) -> Any:
    """max(0, ln((TPR_low - delta) / FPR_high)), with Clopper-Pearson bounds of both rates."""
    low = at_least(positives - misses, positives, alpha / 2) - delta
    high = at_most(false_alarms, negatives, alpha / 2)
    bound = np.log(np.maximum(low, high) / high)
    return bound if bound.ndim else float(bound)


def _best_threshold(world_in: np.ndarray, world_out: np.ndarray, delta: float, alpha: float) -> tuple[float, bool]:
    """The threshold and the direction with the largest bound on these scores."""
    thresholds = np.unique(np.concatenate([world_in, world_out]))
    low = np.searchsorted(np.sort(world_in), thresholds)
    high = len(world_out) - np.searchsorted(np.sort(world_out), thresholds)
    above = _bound(low, len(world_in), high, len(world_out), delta, alpha)
    below = _bound(high, len(world_out), low, len(world_in), delta, alpha)
    if not max(above.max(), below.max()):
        return float(np.median(thresholds)), True
    better = above.max() >= below.max()
    return float(thresholds[int(np.argmax(above if better else below))]), bool(better)
