"""Private selection: the best of a random number of runs, each covered by a theorem."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

from sfumato._checks import fraction
from sfumato.privacy.candidate_count import CandidateCount
from sfumato.privacy.loss import Loss, event_of, quiet_absl, renyi_accountant
from sfumato.privacy.theorems.theorem import Theorem

# Renyi orders: those of dp-accounting, and eight per octave from 64 to 1024, where small epsilons need them.
SELECTION_ORDERS = (
    *(1 + tenth / 10 for tenth in range(1, 100)),
    *range(11, 64),
    *(round(64 * 2 ** (eighth / 8)) for eighth in range(33)),
)


@dataclass(frozen=True)
class Selection:
    """The theorem for the best of K runs, where `each` covers one of them.

    Let (lambda, eps(lambda)) be the Renyi curve of one run. The best of K satisfies eps' at lambda > 1, where

        truncated negative binomial (theorem 2):
            eps' = eps(lambda) + log E[K] / (lambda - 1)
                   + (1 + eta) min over l >= 1 of ((1 - 1 / l) eps(l) + log(1 / gamma) / l)
        Poisson (theorem 6):
            eps' = eps(lambda) + log E[K] / (lambda - 1) + E[K] d, where one run is (log(1 + 1 / (lambda - 1)), d)-DP.
    """

    each: Theorem
    draws: CandidateCount

    tight = "Renyi differential privacy (RDP)"

    @property
    def name(self) -> str:
        """The name in statements."""
        return f"private selection over the {self.each.name}"

    @property
    def citation(self) -> str:
        """Where it is proven."""
        number = "6 (Poisson)" if self.draws.is_poisson else "2 (truncated negative binomial)"
        return (
            f"Papernot and Steinke 2021 (arXiv 2110.03620), theorem {number}; for each candidate: {self.each.citation}"
        )


def epsilon_of_best(loss: Loss, draws: CandidateCount, delta: float) -> float:
    """Epsilon at delta for the best of K independent runs of this loss each, if nothing else is released.

    **Guarantee.** An upper bound for the loss's unit and adjacency, if K is drawn by `draws` independently of
    everything else, the runs are independent given the data and identically distributed, and they are compared by a
    total order on what a run releases (Papernot and Steinke 2021). Ties may be broken by anything but the data, such
    as the run's number. The bound holds for each pair of neighbouring data sets by itself. The Poisson law needs
    E[K] >= 1, which `CandidateCount` ensures: below it, log E[K] would claim a negative divergence.
    """
    return _best_of(loss, draws, fraction("delta", delta, remedy="give a number such as 1e-5, well below 1/N"))


@functools.lru_cache(maxsize=256)
def _best_of(loss: Loss, draws: CandidateCount, delta: float) -> float:
    from dp_accounting import rdp

    with quiet_absl():
        if draws.shape >= 0:
            return float(_accountant(loss, draws).get_epsilon(delta))
        # dp-accounting's own theorem 2 needs a shape of at least 0.
        return float(rdp.compute_epsilon(SELECTION_ORDERS, _curve(loss, draws), delta)[0])


@functools.lru_cache(maxsize=8)
def _accountant(loss: Loss, draws: CandidateCount) -> Any:
    """Cached, because a statement evaluates it at many deltas. Nothing else is composed with it."""
    import dp_accounting

    accountant = renyi_accountant(SELECTION_ORDERS)
    accountant.compose(dp_accounting.dp_event.RepeatAndSelectDpEvent(event_of(loss.parts), draws.mean, draws.shape))
    return accountant


@functools.lru_cache(maxsize=8)
def _curve(loss: Loss, draws: CandidateCount) -> Any:
    """The Renyi curve by theorem 2, for a shape below 0: an array of shape (orders,)."""
    import numpy as np

    return _theorem_2(np.asarray(SELECTION_ORDERS), loss.renyi(SELECTION_ORDERS), draws)


def renyi_of_best(loss: Loss, draws: CandidateCount, order: float) -> float:
    """The Renyi divergence of this order for the best of K, under the conditions of `epsilon_of_best`.

    **Guarantee.** An upper bound for each pair of neighbouring data sets. The other orders serve only as candidates for
    the theorem's minimum.
    """
    orders = (order, *SELECTION_ORDERS)
    with quiet_absl():
        if draws.shape < 0:
            import numpy as np

            return float(_theorem_2(np.asarray(orders), loss.renyi(orders), draws)[0])
        import dp_accounting

        accountant = renyi_accountant(orders)
        run = event_of(loss.parts)
        accountant.compose(dp_accounting.dp_event.RepeatAndSelectDpEvent(run, draws.mean, draws.shape))
        return float(accountant.rdp[0])


def renyi_of_pure(epsilon: float, order: float) -> float:
    """The largest Renyi divergence of this order of an (epsilon, 0)-differentially private release.

    **Guarantee.** It is that of randomized response with two answers: for a given pair of neighbours, any
    (epsilon, 0)-private release is a function of it (Kairouz, Oh and Viswanath 2015).
    """
    import dp_accounting
    from dp_accounting import rdp
    from scipy.special import expit

    accountant = rdp.RdpAccountant([order], neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    accountant.compose(dp_accounting.RandomizedResponseDpEvent(2 * expit(-epsilon), 2))
    return float(accountant.rdp[0])


def _theorem_2(orders: Any, curve: Any, draws: CandidateCount) -> Any:
    """The Renyi curve of the best of K, K truncated negative binomial; `orders` and `curve` have shape (orders,)."""
    choice = ((1 - 1 / orders) * curve + draws.log_inverse_gamma / orders).min()
    return curve + math.log(draws.mean) / (orders - 1) + (1 + draws.shape) * choice
