"""What a promise is worth against an attacker: how often a test for one unit can be right, by how often it is wrong."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from sfumato._checks import fraction
from sfumato.privacy.calibration import gaussian_mu
from sfumato.privacy.loss import COARSE_GRID
from sfumato.privacy.plan import PrivacyPlan
from sfumato.privacy.selection import PrivateSelection

EPSILONS = (0.0, 0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0)
"""Those that a statement gives delta at."""
_MOST_EPSILON = 700.0


def detections(promise: PrivacyPlan | PrivateSelection, false_alarms: Sequence[float]) -> list[float]:
    """The largest true-positive rates of any test for whether one unit was used, at these false-positive rates.

    TPR(a) = min over eps >= 0 of min(e^eps a + delta(eps), 1 - e^-eps (1 - delta(eps) - a)).

    Args:
        promise: what was released: a plan's steps, or the best of a private selection.
        false_alarms: each strictly between 0 and 1.

    Returns:
        one rate for each, never below the false alarms themselves: who guesses reaches these.

    **Guarantee.** Upper bounds for the promise's unit and adjacency, whatever the attacker knows besides (Kairouz, Oh
    and Viswanath 2015, for each (eps, delta) that holds; Dong, Roth and Su 2022, proposition 6, for all of them
    together). The minimum is taken over some eps, which makes the bound larger and never smaller.

    >>> plan = PrivacyPlan.calibrate(examples=50_000, batch_size=50_000, steps=60, epsilon=3.0, delta=1e-5)
    >>> [f"{share:.4f}" for share in detections(plan, [0.001, 0.01])]
    ['0.0089', '0.0540']
    """
    import numpy as np

    rates = np.array([fraction("false_alarms", rate, remedy="give rates such as 0.001") for rate in false_alarms])
    epsilons, deltas = (np.asarray(values)[:, None] for values in curve(promise))
    grown = np.exp(epsilons) * rates + deltas
    missed = 1 - np.exp(-epsilons) * (1 - deltas - rates)
    return np.clip(np.minimum(grown, missed).min(axis=0), rates, 1.0).tolist()


def gaussian_detections(epsilon: float, delta: float, false_alarms: Sequence[float]) -> list[float]:
    """The same for one Gaussian release that is exactly (epsilon, delta)-private: Phi(Phi^-1(a) + mu).

    Sampled and composed steps come close to such a curve, so it says what a promise of this epsilon is usually worth.

    >>> [f"{share:.4f}" for share in gaussian_detections(3.0, 1e-5, [0.001, 0.01])]
    ['0.0089', '0.0540']
    """
    from scipy.special import ndtr, ndtri

    mu = gaussian_mu(epsilon, delta)
    return [float(ndtr(ndtri(rate) + mu)) for rate in false_alarms]


@functools.lru_cache(maxsize=16)
def curve(promise: PrivacyPlan | PrivateSelection) -> tuple[Any, Any]:
    """Pairs (eps, delta) that all hold, as two arrays of one length: by rising epsilon of a plan."""
    import numpy as np

    if isinstance(promise, PrivateSelection):
        deltas = np.geomspace(1e-7, 0.5, 20)
        epsilons = np.array([promise.epsilon(float(delta)) for delta in deltas])
        return np.minimum(epsilons, _MOST_EPSILON), np.where(epsilons > _MOST_EPSILON, 1.0, deltas)
    usual = min(2 * promise.epsilon(), _MOST_EPSILON)
    epsilons = np.unique([*np.linspace(0.0, usual, 400), *np.geomspace(1e-3, _MOST_EPSILON, 200), *EPSILONS])
    return epsilons, promise.loss.deltas(epsilons.tolist(), grid=COARSE_GRID)
