"""The part of a statement beyond one (epsilon, delta): a curve of deltas, mu, and an attacker's success rates.

Ponomareva et al. 2023 (arXiv 2303.00654) and NIST SP 800-226 ask for more than one point of the curve. Every figure is
rounded up to so few digits that all machines produce the same ones.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, Protocol

from sfumato._checks import fraction
from sfumato.privacy.calibration import gaussian_mu
from sfumato.privacy.loss import COARSE_GRID, FINE_GRID, Loss
from sfumato.privacy.statements.display import ceiling
from sfumato.privacy.theorems.composed_gaussian import OneGaussian

EPSILONS = (0.0, 0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0)
"""The epsilons at which a statement gives delta."""
_MOST_EPSILON = 700.0


class Curved(Protocol):
    """Releases with a guarantee: a `PrivacyPlan`."""

    @property
    def loss(self) -> Loss:
        """The privacy loss."""
        ...

    @property
    def delta(self) -> float:
        """The delta at which its statement gives epsilon."""
        ...


def true_positive_rates(plan: Curved, false_alarms: Sequence[float], *, grid: float = FINE_GRID) -> list[float]:
    """The largest true-positive rates of any membership test for one unit, at these false-positive rates.

    TPR(a) = min over eps >= 0 of min(e^eps a + delta(eps), 1 - e^-eps (1 - delta(eps) - a)).

    Args:
        plan: the plan of the releases.
        false_alarms: the false-positive rates, each strictly between 0 and 1.
        grid: that of the epsilon which decides where the curve is evaluated.

    Returns:
        One rate for each false-positive rate, never below it: guessing achieves that much.

    **Guarantee.** Upper bounds for the plan's unit and adjacency, whatever else the attacker knows (Kairouz, Oh and
    Viswanath 2015, for each (eps, delta) that holds; Dong, Roth and Su 2022, proposition 6, for all of them together).
    The minimum is taken over only some eps, which can only make the bound larger.

    >>> from sfumato import PrivacyPlan
    >>> plan = PrivacyPlan.calibrate(examples=50_000, batch_size=50_000, steps=60, epsilon=3.0, delta=1e-5)
    >>> [f"{share:.4f}" for share in true_positive_rates(plan, [0.001, 0.01])]
    ['0.0089', '0.0540']
    """
    import numpy as np

    rates = np.array([fraction(false_alarms=rate, remedy="give rates such as 0.001") for rate in false_alarms])
    epsilons, deltas = (np.asarray(values)[:, None] for values in curve(plan, grid))
    grown = np.exp(epsilons) * rates + deltas
    missed = 1 - np.exp(-epsilons) * (1 - deltas - rates)
    return np.clip(np.minimum(grown, missed).min(axis=0), rates, 1.0).tolist()


def gaussian_true_positive_rates(epsilon: float, delta: float, false_alarms: Sequence[float]) -> list[float]:
    """The same rates for one Gaussian release that is exactly (epsilon, delta)-private: Phi(Phi^-1(a) + mu).

    The curve of sampled and composed steps comes close to it, so it shows what a given epsilon is usually worth.

    >>> [f"{share:.4f}" for share in gaussian_true_positive_rates(3.0, 1e-5, [0.001, 0.01])]
    ['0.0089', '0.0540']
    """
    from scipy.special import ndtr, ndtri

    mu = gaussian_mu(epsilon, delta)
    return [float(ndtr(ndtri(rate) + mu)) for rate in false_alarms]


def reconstruction_rates(plan: Curved, guesses: Sequence[float]) -> list[float]:
    """The largest probabilities with which any attack reconstructs one unit's data: 1 - f(kappa).

    f is the trade-off function of the releases: the smallest share of misses of a test for the unit, by its
    false alarms (Dong, Roth and Suh 2022), as in `true_positive_rates`.

    Args:
        plan: as for `true_positive_rates`.
        guesses: kappa, the probability with which the best guess without the model succeeds: the largest over all
            guesses z0 of P(l(Z, z0) <= eta), for data Z of the unit drawn from the attacker's prior, a distance l and
            a radius eta that counts as success. Each is strictly between 0 and 1.

    Returns:
        One probability for each kappa, never below it.

    **Guarantee.** An upper bound for one unit of the plan, for any prior, distance and radius, and for an attacker
    who knows all other data and sees all releases (reconstruction robustness: Balle, Cherubin and Hayes 2022, arXiv
    2201.04845; by the blow-up function of the release, Hayes, Mahloujifar and Balle 2023, arXiv 2302.07225; by f, which
    is its complement, Kaissis et al. 2023, arXiv 2307.03928). Proof: an attack R succeeds on z in the event
    E_z = {l(z, R(w)) <= eta}. As a test for z, this event has detections of at most g = 1 - f of its false alarms,
    which are its probability Q(E_z) without the unit. Without the unit, w is independent of Z, so Q(E_Z) is at most
    kappa on average. g is concave and increasing, here as a minimum of lines, so the mean of g(Q(E_Z)) is at most
    g(kappa) (Jensen).

    >>> from sfumato import PrivacyPlan
    >>> plan = PrivacyPlan.calibrate(examples=50_000, batch_size=50_000, steps=60, epsilon=3.0, delta=1e-5)
    >>> [f"{share:.4f}" for share in reconstruction_rates(plan, [0.001, 0.01])]
    ['0.0089', '0.0540']
    """
    return true_positive_rates(plan, guesses)


@functools.lru_cache(maxsize=16)
def curve(plan: Curved, grid: float = FINE_GRID) -> tuple[Any, Any]:
    """Pairs (eps, delta) that all hold, as two arrays of one length. Epsilon is increasing."""
    import numpy as np

    usual = min(2 * plan.loss.epsilon(plan.delta, grid=grid), _MOST_EPSILON)
    epsilons = np.unique([*np.linspace(0.0, usual, 400), *np.geomspace(1e-3, _MOST_EPSILON, 200), *EPSILONS])
    return epsilons, plan.loss.deltas(epsilons.tolist(), grid=COARSE_GRID)


FALSE_ALARMS = (0.001, 0.01, 0.1)
LEAST_DELTA = 1e-9
"""Below it the accountant's rounding error shows, so a smaller delta is reported as this one."""
EXCEPT_WITH = 0.1
"""mu holds except for this share of delta: the far tail of a sampled step is not Gaussian."""


@functools.lru_cache(maxsize=16)
def curve_fields(plan: Curved) -> dict[str, Any]:
    """The fields of a statement, by name.

    **Guarantee.** Upper bounds for the plan's unit and adjacency: the run is (epsilon, delta)-differentially
    private for each pair in `curve`; for `mu` see `dominating_gaussian`; for `true_positives` see
    `true_positive_rates`.
    """
    rates = zip(FALSE_ALARMS, true_positive_rates(plan, FALSE_ALARMS), strict=True)
    epsilons, deltas = curve(plan)
    delta_at = dict(zip(epsilons.tolist(), deltas, strict=True))
    mu, spared = dominating_gaussian(plan)
    gap = ceiling(_gap(plan, mu), 3) if spared and math.isfinite(mu) else 0.0
    return {
        "curve": [{"epsilon": one, "delta": max(up_to_digits(delta_at[one]), LEAST_DELTA)} for one in EPSILONS],
        "mu": {"mu": ceiling(mu, 4), "except_with": spared, "gap": gap} if math.isfinite(mu) else None,
        "true_positives": {f"{rate:g}": min(ceiling(value, 4), 1.0) for rate, value in rates},
    }


def dominating_gaussian(plan: Curved, *, grid: float = FINE_GRID) -> tuple[float, float]:
    """The mu of a statement before it is rounded up, and the share of delta for which it does not hold.

    **Guarantee.** See `dominating_mu`. Gaussian steps without sampling are one Gaussian release, so their mu is exact
    and holds without exception.
    """
    parts = plan.loss.parts
    if len(parts) == 1 and isinstance(part := parts[0], OneGaussian):
        return math.sqrt(part.precision), 0.0
    spared = float(f"{EXCEPT_WITH * plan.delta:.6g}")
    return dominating_mu(plan, spared, grid=grid), spared


def dominating_mu(plan: Curved, spared: float, *, grid: float = FINE_GRID) -> float:
    """A mu with delta(eps) <= delta_mu(eps) + spared for all eps >= 0, delta_mu(eps) that of a Gaussian release.

    **Guarantee.** No test for one unit has a true-positive rate above Phi(Phi^-1(a) + mu) + spared at a false-positive
    rate a (Dong, Roth and Su 2022, proposition 6). Between two epsilons of the curve, delta is evaluated at the lower
    and delta_mu at the upper one, because both decrease. Beyond the last epsilon, delta is at most `spared`, or else mu
    is infinite.
    """
    import numpy as np

    epsilons, deltas = (np.asarray(values) for values in curve(plan, grid))
    if deltas[-1] > spared:
        return math.inf
    left = deltas[:-1] - spared
    upper, left = epsilons[1:][left > 0], left[left > 0]
    if not len(left):
        return 0.0
    low, high = np.full(len(left), 1e-6), np.full(len(left), 1e4)
    for _ in range(60):
        middle = np.sqrt(low * high)
        enough = gaussian_deltas(middle, upper) >= left
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return float(high.max()) if (gaussian_deltas(high, upper) >= left).all() else math.inf


def gaussian_deltas(mu: Any, epsilons: Any) -> Any:
    """delta_mu(eps) = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu), element by element."""
    import numpy as np
    from scipy.special import log_ndtr

    above, below = log_ndtr(mu / 2 - epsilons / mu), log_ndtr(-mu / 2 - epsilons / mu)
    return np.exp(above) * -np.expm1(np.minimum(epsilons + below - above, 0.0))


def _gap(plan: Curved, mu: float) -> float:
    """The most by which the Gaussian of mu overstates the true-positive rate, over a grid of false-positive rates."""
    import numpy as np
    from scipy.special import ndtr, ndtri

    rates = np.concatenate([np.geomspace(1e-4, 0.1, 40), np.linspace(0.1, 0.9, 41)])
    return max(0.0, float((ndtr(ndtri(rates) + mu) - np.array(true_positive_rates(plan, rates.tolist()))).max()))


def up_to_digits(value: float, digits: int = 3) -> float:
    """The value, rounded up to this many significant digits.

    >>> up_to_digits(0.000012341), up_to_digits(1.0), up_to_digits(0.9999)
    (1.24e-05, 1.0, 1.0)
    """
    if value <= 0:
        return 0.0
    return float(f"{ceiling(value, digits - 1 - math.floor(math.log10(value))):.{digits}g}")
