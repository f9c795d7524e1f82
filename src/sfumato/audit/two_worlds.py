"""Two worlds: models trained with a record, and models trained without it (De 2022, appendix A.2; Tramer et al. 2022).

Whoever tells the two apart with true positive rate TPR at false positive rate FPR has refuted every epsilon below
ln((TPR - delta) / FPR) (Hall et al. 2013), and likewise ln((TNR - delta) / FNR).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr

from sfumato._checks import SfumatoError, fraction, not_negative, positive, positive_integer
from sfumato.audit.bound import Bound
from sfumato.audit.clopper_pearson import at_least, at_most
from sfumato.audit.curve import mu_of
from sfumato.audit.search import smallest_fault, unlucky


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
    """A lower bound of epsilon from independent scores of both worlds.

    A score of at least the threshold is taken for "in". The threshold and the direction are chosen on some of the
    scores, and the bound is computed on the others; or thresholds are given, fixed before any score was seen, and all
    of them are tried in both directions, each with its share of one minus the confidence.

    Args:
        scores_in: (n,) one score for each model that was trained with the record, in an order that the scores had no
            part in.
        scores_out: (n',) likewise without it.
        delta: of the promise.
        confidence: of the bound, in all.
        threshold: fixed beforehand, one or several; None to choose it.
        choosing: how many scores of each world the threshold is chosen on, the first ones: half of them by default.
        nominal_epsilon: what is promised, for the smallest fault that would have been noticed.

    **Guarantee.** The bound exceeds the mechanism's true epsilon at delta with probability at most 1 - confidence, for
    any scores that are independent, alike within a world, and a function of what is released alone.
    """
    world_in, world_out = _scores("scores_in", scores_in), _scores("scores_out", scores_out)
    delta, alpha = not_negative("delta", delta), 1 - fraction("confidence", confidence)
    if threshold is None:
        first = _reserved(choosing, min(len(world_in), len(world_out)))
        tests = [_chosen(world_in[:first], world_out[:first], delta, alpha)]
        world_in, world_out = world_in[first:], world_out[first:]
    else:
        thresholds = np.unique(_scores("threshold", np.atleast_1d(np.asarray(threshold, float))))
        tests = [(float(value), above) for value in thresholds for above in (True, False)]
    share = alpha / len(tests)
    found = [(_shown(*_counts(world_in, world_out, *test), delta, share), test) for test in tests]
    epsilon, (value, above) = max(found)
    lost, of_lost, wrong, of_wrong = _counts(world_in, world_out, value, above)

    def shown(factor: float) -> float:
        """What so many scores would show of Gaussian scores by the threshold in the middle."""
        error = float(ndtr(-mu / factor / 2))
        return _shown(unlucky(of_lost, error), of_lost, unlucky(of_wrong, error), of_wrong, delta, share)

    fault = None
    if nominal_epsilon is not None:
        mu = mu_of(positive("nominal_epsilon", nominal_epsilon), max(delta, 1e-12))
        fault = smallest_fault(lambda factor: shown(factor) > nominal_epsilon)
    return Bound(
        epsilon=epsilon,
        delta=delta,
        confidence=confidence,
        method="two worlds, Clopper-Pearson",
        at_most=_shown(0, of_lost, 0, of_wrong, delta, share),
        smallest_fault=fault,
        observations={
            "models_in": len(world_in),
            "models_out": len(world_out),
            "threshold": value,
            "in_taken_for_out": lost if above else wrong,
            "out_taken_for_in": wrong if above else lost,
            "tests": len(tests),
        },
    )


def largest_provable(runs: int, delta: float, confidence: float = 0.95) -> float:
    """The largest epsilon that so many runs in each world can prove, when not one of them is taken for the other's.

    >>> round(largest_provable(500, 1e-5), 2), round(largest_provable(1000, 1e-5), 2)
    (4.91, 5.6)
    """
    runs, alpha = positive_integer("runs", runs), 1 - fraction("confidence", confidence)
    return _shown(0, runs, 0, runs, not_negative("delta", delta), alpha)


def _scores(name: str, values: ArrayLike) -> np.ndarray:
    found = np.asarray(values, float)
    if found.ndim != 1 or not found.size or np.isnan(found).any():
        raise SfumatoError(
            f"{name} must be a list of numbers, got shape {found.shape} with {int(np.isnan(found).sum())} NaN",
            "give one number for each model",
        )
    return found


def _reserved(choosing: int | None, fewest: int) -> int:
    first = fewest // 2 if choosing is None else positive_integer("choosing", choosing)
    if not 0 < first < fewest:
        raise SfumatoError(
            f"choosing must leave scores in each world, got {first} of {fewest}", "give more scores, or a threshold"
        )
    return first


def _counts(world_in: np.ndarray, world_out: np.ndarray, threshold: float, above: bool) -> tuple[int, int, int, int]:
    """Misses of how many, and false alarms of how many; where not `above`, an alarm is a score below the threshold."""
    lost, wrong = int((world_in < threshold).sum()), int((world_out >= threshold).sum())
    return (lost, len(world_in), wrong, len(world_out)) if above else (wrong, len(world_out), lost, len(world_in))


def _shown(lost: Any, of_lost: int, wrong: Any, of_wrong: int, delta: float, alpha: float) -> Any:
    """ln((TPR_low - delta) / FPR_high), or 0 where that is less."""
    low = at_least(of_lost - lost, of_lost, alpha / 2) - delta
    high = at_most(wrong, of_wrong, alpha / 2)
    found = np.log(np.maximum(low, high) / high)
    return found if found.ndim else float(found)


def _chosen(world_in: np.ndarray, world_out: np.ndarray, delta: float, alpha: float) -> tuple[float, bool]:
    """The threshold and the direction that show most on these scores."""
    places = np.unique(np.concatenate([world_in, world_out]))
    lost = np.searchsorted(np.sort(world_in), places)
    wrong = len(world_out) - np.searchsorted(np.sort(world_out), places)
    above = _shown(lost, len(world_in), wrong, len(world_out), delta, alpha)
    below = _shown(wrong, len(world_out), lost, len(world_in), delta, alpha)
    if not max(above.max(), below.max()):
        return float(np.median(places)), True
    better = above.max() >= below.max()
    return float(places[int(np.argmax(above if better else below))]), bool(better)
