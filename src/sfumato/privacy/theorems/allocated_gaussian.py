"""Gaussian steps under random allocation: each unit takes part in one step of every epoch, drawn uniformly."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from sfumato._checks import SfumatoError
from sfumato.privacy.loss import FINE_GRID
from sfumato.privacy.mechanism import Gaussian
from sfumato.privacy.participation import Allocated
from sfumato.privacy.theorems.poisson_gaussian import loss_range
from sfumato.privacy.theorems.theorem import Plan, RepeatedSteps, Theorem

LEAST_AMPLIFIED = 0.05
"""With less noise than this, an epoch counts as one Gaussian release whose step is known."""
_WIDTH = 0.025
"""The fine grid's width, relative to the standard deviation of an epoch's ratio. Adds about 3e-4 of epsilon."""

_WIDEST = 50.0
"""Of the grid for one release; on a wider one, ratios overflow. The coarse grid's is at most 10."""


class AllocatedGaussian(Theorem):
    """The composition of epochs. An unfinished epoch counts as a whole one."""

    participations, mechanisms = (Allocated,), (Gaussian,)
    name = "Gaussian mechanism amplified by random allocation"
    citation = (
        "Feldman and Shenfeld 2025 (arXiv 2502.08202: dominating pair of an epoch under add-or-remove) and 2026 (arXiv "
        "2602.17284: its privacy loss distribution); Doroshenko et al. 2022 (pessimistic connect-the-dots)"
    )
    tight = "privacy loss distribution (PLD)"

    def check(self, plan: Plan) -> None:
        """Refuse units whose vector is exchanged for another one, not present or absent."""
        super().check(plan)
        if plan.unit.shift_per_vector != 1:
            raise SfumatoError(
                f"participation {plan.participation.name} is proven for vectors that are present or absent, but one "
                f"user in virtual {plan.unit.drawn} exchanges a vector for another one",
                "use poisson participation, or users that are sampled as a whole",
            )

    def part(self, plan: Plan, steps: int) -> AllocatedEpochs:
        """The self-composition of the privacy loss distribution of an epoch."""
        epoch = _rule(plan).epoch(plan.population)
        return AllocatedEpochs(sigma=self.relative_noise(plan), epoch=epoch, steps=-(-steps // epoch))

    def equivalent_steps(self, plan: Plan, mu: float) -> float:
        """As many as Poisson sampling has with probability 1 / t: (T / t^2) (e^(1/sigma^2) - 1) = mu^2."""
        return (mu * _rule(plan).epoch(plan.population)) ** 2 / math.expm1(min(self.relative_noise(plan) ** -2, 700.0))


def _rule(plan: Plan) -> Allocated:
    assert isinstance(plan.participation, Allocated)
    return plan.participation


@dataclass(frozen=True, kw_only=True)
class AllocatedEpochs(RepeatedSteps):
    """`steps` epochs of `epoch` Gaussian releases each, of noise `sigma` over the sensitivity.

    **Guarantee.** For one unit added, removed or zeroed out, whose vector v has norm at most C. Let b_i be 1 in the
    unit's step of an epoch and 0 in the others. Step i releases the sum of the others, whose steps do not depend
    on the unit, plus b_i v, plus noise; v may depend on earlier releases. The release can be computed from the number
    b_i + N(0, sigma^2): multiply it by v, and add independent noise so that the noise has standard deviation sigma C in
    every direction. So an epoch is a post-processing of b + N(0, sigma^2 I), where b is one of the t unit vectors,
    uniformly, if the unit is present, and 0 if it is not. `epoch_ratio` accounts for this pair. Epochs are drawn
    independently and compose adaptively (Zhu, Dong and Wang 2022). A part of an epoch is a post-processing of the
    whole. With little noise or on a very wide grid, the unit's step is taken as known, which leaves N(1, sigma^2)
    against N(0, sigma^2).
    """

    sigma: float
    epoch: int

    @property
    def coarsening(self) -> float:
        """In proportion to the standard deviation of an epoch's ratio, or to the range of a release's losses."""
        if self._known:
            return loss_range(self.sigma) / 10
        deviation = min(math.sqrt(math.expm1(self.sigma**-2)), 2 / self.sigma)
        return _WIDTH / FINE_GRID * deviation / math.sqrt(self.epoch)

    @property
    def _known(self) -> bool:
        return self.sigma < LEAST_AMPLIFIED

    def step_distribution(self, width: float) -> Any:
        """The privacy loss distribution of one epoch."""
        import numpy as np
        from dp_accounting.pld import privacy_loss_distribution

        from sfumato.privacy.theorems.allocated_ratio import epoch_ratio
        from sfumato.privacy.theorems.connect_dots import ConnectedDots

        if self._known or width * math.sqrt(self.epoch) > _WIDEST:
            return privacy_loss_distribution.from_gaussian_mechanism(
                self.sigma, value_discretization_interval=width, use_connect_dots=True
            )
        wider = max(1, math.floor(FINE_GRID * self.coarsening / width))  # other releases may need a finer grid
        ratio = epoch_ratio(1 / self.sigma, self.epoch, width * wider).refined(wider)
        removed = ConnectedDots(width, ratio.first, ratio.moments(), ratio.lost_moment, True)
        last = ratio.first + len(ratio.masses) - 1
        added = ConnectedDots(width, -last, np.ascontiguousarray(ratio.masses[::-1]), ratio.lost, True)
        return privacy_loss_distribution.PrivacyLossDistribution(removed, added)
