"""Gaussian steps under Poisson sampling whose probability depends on the step and on the record's group."""

from __future__ import annotations

import bisect
import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sfumato._checks import SfumatoError
from sfumato.privacy.loss import Part, Repeats
from sfumato.privacy.mechanism import Gaussian
from sfumato.privacy.participation import DriftingPoisson
from sfumato.privacy.participation.drifting_poisson import Counts
from sfumato.privacy.theorems.poisson_gaussian import PoissonGaussian, SampledGaussians
from sfumato.privacy.theorems.theorem import Plan, Theorem

MOST = 200
"""The most probabilities that are accounted for separately. If there are more, neighbours are merged (`_coarsened`)."""
_FARTHEST = 9.3
"""In standard deviations. Noise exceeds this with probability below 1e-20."""


class DriftingGaussian(Theorem):
    """The composition of Poisson-subsampled Gaussian mechanisms of different probabilities; the worse of two groups."""

    participations, mechanisms = (DriftingPoisson,), (Gaussian,)
    name = "Gaussian mechanism under Poisson sampling that drifts between two groups"
    citation = (
        "Zhu, Dong and Wang 2022 (dominating pairs under add-or-remove, and their composition); Doroshenko et al. 2022 "
        "(privacy loss distributions, pessimistic connect-the-dots); Mironov, Talwar and Zhang 2019 (RDP)"
    )
    tight = PoissonGaussian.tight

    def check(self, plan: Plan) -> None:
        """Refuse users: their group is unknown."""
        super().check(plan)
        if plan.unit.drawn != "examples":
            raise SfumatoError(
                f"participation {plan.participation.name} depends on each record's own group, but {plan.unit.drawn} "
                "are sampled, and their records may be in both groups",
                "use examples as the unit, or poisson participation",
            )

    def part(self, plan: Plan, steps: int) -> DriftingGaussians:
        """The sequence of sampling probabilities of each group."""
        return DriftingGaussians(sigma=self.relative_noise(plan), groups=_rule(plan).counts(steps))

    def equivalent_steps(self, plan: Plan, mu: float) -> float:
        """As for Poisson sampling at the root mean square of the probabilities of one period."""
        return self.part(plan, _rule(plan).period).approximation.equivalent_steps(mu)


def _rule(plan: Plan) -> DriftingPoisson:
    assert isinstance(plan.participation, DriftingPoisson)
    return plan.participation


@dataclass(frozen=True, kw_only=True)
class DriftingGaussians(Part):
    """Gaussian releases of noise `sigma` over the sensitivity, in which each group has its own sampling probabilities.

    **Guarantee.** For one record added, removed or zeroed out, whichever group it is in. Its group is a function of the
    record alone and is known beforehand. So step t is dominated by the Poisson-subsampled Gaussian with its group's
    probability, and all steps together by the composition of these, in any order. Steps of probability 0 are the same
    with and without the record. At every epsilon, delta is the larger of the two groups' deltas. Replacing a record by
    one of the other group is one removal and one addition: two units.
    """

    has_renyi = True
    sigma: float
    groups: tuple[Counts, Counts]

    @property
    def approximation(self) -> SampledGaussians:
        """Steps of a single probability that cost about as much."""
        mean, steps = max(
            (sum(count * q**2 for q, count in group) / total, total)
            for group in self.groups
            if (total := sum(count for _, count in group))
        )
        return SampledGaussians(sigma=self.sigma, probability=math.sqrt(mean), steps=steps)

    @property
    def coarsening(self) -> float:
        return self.approximation.coarsening

    def repeats(self, width: float) -> tuple[Repeats, ...]:
        """The steps of each group. One group is enough if its probabilities are the larger ones in every place, because
        a larger probability dominates a smaller one."""
        groups = [_coarsened(group) for group in self.groups]
        worse = _placewise(*groups)
        distinct = [worse] if worse in groups else groups
        return tuple(self._steps(group, width) for group in distinct)

    def dominating(self, width: float) -> Repeats:
        return self._steps(self._worst, width)

    def _steps(self, group: Counts, width: float) -> Repeats:
        return tuple((_step_distribution(self.sigma, q, width), count) for q, count in group)

    def renyi(self, orders: Sequence[float]) -> Any:
        parts = (SampledGaussians(sigma=self.sigma, probability=q, steps=count) for q, count in self._worst)
        return sum(part.renyi(orders) for part in parts)

    @property
    def _worst(self) -> Counts:
        """In place i, the larger of the i-th largest probabilities of the two groups: it dominates the smaller one."""
        return _coarsened(_placewise(*self.groups))


def _placewise(first: Counts, second: Counts) -> Counts:
    """In place i, the larger of the i-th largest probabilities of the two groups."""
    ends = [list(itertools.accumulate(count for _, count in group)) for group in (first, second)]
    counts: dict[float, int] = {}
    before = 0
    for end in sorted({*ends[0], *ends[1]}):
        places = (bisect.bisect_left(thresholds, end) for thresholds in ends)
        worst = max(group[place][0] for group, place in zip((first, second), places, strict=True) if place < len(group))
        counts[worst] = counts.get(worst, 0) + end - before
        before = end
    return tuple(counts.items())


def _coarsened(group: Counts) -> Counts:
    """The same counts with at most `MOST` probabilities: neighbours are merged into the largest of them."""
    each = -(-len(group) // MOST)
    if each <= 1:
        return group
    pieces = (group[start : start + each] for start in range(0, len(group), each))
    return tuple((piece[0][0], sum(count for _, count in piece)) for piece in pieces)


@functools.lru_cache(maxsize=4 * MOST)
def _step_distribution(sigma: float, probability: float, width: float) -> Any:
    """The privacy loss distribution of one step."""
    from dp_accounting.pld import privacy_loss_distribution

    both = (one_way(sigma, probability, width) for one_way in (_removed, _added))
    return privacy_loss_distribution.PrivacyLossDistribution(*both)


class _OneStep:
    """The privacy loss of one step. dp-accounting's own class takes ten times as long.

    With q the probability, the loss of an outcome x is log(1 - q + q e^((2 x - 1) / (2 sigma^2))), rising in x.
    """

    def __init__(self, sigma: float, probability: float):
        import numpy as np

        self.sigma, self.probability = sigma, probability
        with np.errstate(divide="ignore"):
            self.least = np.log1p(-probability)
        ends = np.array([-_FARTHEST * sigma, 1 + _FARTHEST * sigma])
        self.ends = np.logaddexp(self.least, math.log(probability) + (2 * ends - 1) / (2 * sigma**2)).tolist()

    def outcomes(self, losses: Any) -> Any:
        """The outcomes of these losses. A loss below the least one gets an outcome of practically minus infinity."""
        import numpy as np

        above = np.maximum(-np.expm1(np.minimum(self.least - losses, 0.0)), 1e-300)
        return self.sigma**2 * (losses + np.log(above) - math.log(self.probability)) + 0.5


def _removed(sigma: float, q: float, width: float) -> Any:
    """A step with the record against one without it: delta is the mass of outcomes whose loss exceeds epsilon."""
    import numpy as np
    from scipy.special import ndtr

    from sfumato.privacy.theorems.sampled_losses import connect_dots, grid

    step = _OneStep(sigma, q)
    low, _, epsilons = grid(step.ends[0], step.ends[1], width)
    x = step.outcomes(epsilons)
    deltas = q * ndtr((1 - x) / sigma) - (np.expm1(epsilons) + q) * ndtr(-x / sigma)
    return connect_dots(low, deltas, width)


def _added(sigma: float, q: float, width: float) -> Any:
    """A step without the record against one with it: delta is the mass of outcomes with a loss below minus epsilon."""
    import numpy as np
    from scipy.special import ndtr

    from sfumato.privacy.theorems.sampled_losses import connect_dots, grid

    step = _OneStep(sigma, q)
    low, _, epsilons = grid(-step.ends[1], -step.ends[0], width)
    x = step.outcomes(-epsilons)
    deltas = (1 - np.exp(epsilons) * (1 - q)) * ndtr(x / sigma) - np.exp(epsilons) * q * ndtr((x - 1) / sigma)
    return connect_dots(low, deltas, width)
