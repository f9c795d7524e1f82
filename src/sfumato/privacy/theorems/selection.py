"""Private selection: the best of a random number of runs, each of which a theorem speaks for."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

from sfumato._checks import fraction
from sfumato.privacy.candidate_count import CandidateCount
from sfumato.privacy.loss import Loss, event_of, quiet_absl, renyi_accountant
from sfumato.privacy.theorems.theorem import Theorem

# Renyi orders: dp-accounting's own, and eight to the octave from 64 to 1024, where small epsilons lie.
SELECTION_ORDERS = (
    *(1 + tenth / 10 for tenth in range(1, 100)),
    *range(11, 64),
    *(round(64 * 2 ** (eighth / 8)) for eighth in range(33)),
)


@dataclass(frozen=True)
class Selection:
    """What speaks for the best of K runs, where `each` speaks for one of them.

    With (lambda, eps(lambda)) the Renyi curve of one run, the best of K satisfies eps' at lambda > 1, where

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
        """What a statement calls it."""
        return f"private selection over the {self.each.name}"

    @property
    def citation(self) -> str:
        """Where it is proven."""
        number = "6 (Poisson)" if self.draws.is_poisson else "2 (truncated negative binomial)"
        return (
            f"Papernot and Steinke 2021 (arXiv 2110.03620), theorem {number}; for each candidate: {self.each.citation}"
        )


def best_of(loss: Loss, draws: CandidateCount, delta: float) -> float:
    """The epsilon at delta of the best of K independent runs of this loss each, when nothing else is released.

    **Guarantee.** An upper bound for the loss's unit and adjacency, if K is drawn by `draws` independently of
    everything, the runs are independent given the data and all of one law, and they are compared by a total order on
    what a run gives out (Papernot and Steinke 2021). Runs that are equal in it may be told apart by anything but the
    data, such as their number. It holds for each pair of neighbouring data sets by itself. The Poisson law needs E[K]
    >= 1, which `CandidateCount` sees to: below, log E[K] would promise a divergence under zero.
    """
    return _best_of(loss, draws, fraction("delta", delta, remedy="give a number such as 1e-5, well below 1/N"))


@functools.lru_cache(maxsize=256)
def _best_of(loss: Loss, draws: CandidateCount, delta: float) -> float:
    from dp_accounting import rdp

    with quiet_absl():
        if draws.shape >= 0:
            return float(_accountant(loss, draws).get_epsilon(delta))
        # dp-accounting's own theorem 2 begins at shape 0.
        return float(rdp.compute_epsilon(SELECTION_ORDERS, _curve(loss, draws), delta)[0])


@functools.lru_cache(maxsize=8)
def _accountant(loss: Loss, draws: CandidateCount) -> Any:
    """Which a statement asks at one delta after the other; nobody composes anything further with it."""
    import dp_accounting

    accountant = renyi_accountant((), SELECTION_ORDERS)
    accountant.compose(dp_accounting.dp_event.RepeatAndSelectDpEvent(event_of(loss.parts), draws.mean, draws.shape))
    return accountant


@functools.lru_cache(maxsize=8)
def _curve(loss: Loss, draws: CandidateCount) -> Any:
    """By theorem 2, for a shape below 0: an array of shape (orders,)."""
    import numpy as np

    return _theorem_2(np.asarray(SELECTION_ORDERS), loss.renyi(SELECTION_ORDERS), draws)


def renyi_of_best(loss: Loss, draws: CandidateCount, order: float) -> float:
    """The Renyi divergence of this order of the best of K, under the conditions of `best_of`.

    **Guarantee.** An upper bound, for each pair of neighbouring data sets: its other orders are only those that the
    theorem takes its minimum over.
    """
    orders = (order, *SELECTION_ORDERS)
    with quiet_absl():
        if draws.shape < 0:
            import numpy as np

            return float(_theorem_2(np.asarray(orders), loss.renyi(orders), draws)[0])
        import dp_accounting

        accountant = renyi_accountant((), orders)
        run = event_of(loss.parts)
        accountant.compose(dp_accounting.dp_event.RepeatAndSelectDpEvent(run, draws.mean, draws.shape))
        return float(accountant.rdp[0])


def renyi_of_pure(epsilon: float, order: float) -> float:
    """The Renyi divergence of this order that an (epsilon, 0)-differentially private release has at most.

    **Guarantee.** That of randomized response between two answers, which any (epsilon, 0)-private release is a
    function of for a given pair of neighbours (Kairouz, Oh and Viswanath 2015).
    """
    import dp_accounting
    from dp_accounting import rdp
    from scipy.special import expit

    accountant = rdp.RdpAccountant([order], neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    accountant.compose(dp_accounting.RandomizedResponseDpEvent(2 * expit(-epsilon), 2))
    return float(accountant.rdp[0])


def _theorem_2(orders: Any, curve: Any, draws: CandidateCount) -> Any:
    """The Renyi curve of the best of K, K truncated negative binomial; `orders` and `curve` of shape (orders,)."""
    choice = ((1 - 1 / orders) * curve + draws.log_inverse_gamma / orders).min()
    return curve + math.log(draws.mean) / (orders - 1) + (1 + draws.shape) * choice
