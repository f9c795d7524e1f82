"""Steps that together are one Gaussian release, without random sampling: noise independent, banded or of a tree."""

from __future__ import annotations

import functools
import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sfumato.privacy.loss import Part, Repeats
from sfumato.privacy.mechanism import BandedToeplitz, Gaussian, Tree
from sfumato.privacy.participation import FixedOrder, FullBatch
from sfumato.privacy.theorems.poisson_gaussian import SampledGaussians
from sfumato.privacy.theorems.theorem import Plan, Theorem


class OneGaussianTheorem(Theorem):
    """One Gaussian release of noise sigma over sensitivity S, for rules that fix each unit's steps in advance."""

    participations = (FullBatch, FixedOrder)
    tight = "exact Gaussian composition"

    @abstractmethod
    def squared_sensitivity(self, plan: Plan, steps: int) -> float:
        """S^2 of the first `steps` releases: the squared distance, in units of C, by which one vector per step moves
        the quantity that receives the noise."""

    def part(self, plan: Plan, steps: int) -> OneGaussian:
        """The Gaussian mechanism of noise sigma / S."""
        return OneGaussian(precision=self.squared_sensitivity(plan, steps) / self.relative_noise(plan) ** 2)

    def equivalent_steps(self, plan: Plan, mu: float) -> float:
        """S^2 / sigma^2 = mu^2, if S^2 keeps growing as it does until every unit has taken part once."""
        once = gap(plan)
        return once * mu**2 * self.relative_noise(plan) ** 2 / self.squared_sensitivity(plan, once)


class ComposedGaussian(OneGaussianTheorem):
    """Gaussian releases without sampling: k releases of noise sigma are one of noise sigma / sqrt(k)."""

    mechanisms = (Gaussian,)
    name = "composed Gaussian mechanism without sampling"
    citation = "Balle and Wang 2018, theorem 8; Dong, Roth and Su 2022 (composition); Mironov 2017 (RDP)"

    def squared_sensitivity(self, plan: Plan, steps: int) -> int:
        """k: the most steps, among the first `steps`, in which one unit takes part."""
        return -(-steps // gap(plan))


def gap(plan: Plan) -> int:
    """The number of steps between two participations of a unit, under a rule that fixes them in advance."""
    participation = plan.participation
    assert isinstance(participation, (FullBatch, FixedOrder))
    return participation.gap(plan.population)


@dataclass(frozen=True, kw_only=True)
class OneGaussian(Part):
    """T_i Gaussian releases of noise s_i over their sensitivity, merged into one release.

    Args:
        precision: 1 / s^2 = sum_i T_i / s_i^2.
    """

    has_renyi = True
    precision: float

    def and_then(self, other: Part) -> Part | None:
        return OneGaussian(precision=self.precision + other.precision) if isinstance(other, OneGaussian) else None

    @property
    def sigma(self) -> float:
        """s."""
        return 1 / math.sqrt(self.precision)

    def epsilon(self, delta: float) -> float:
        """Epsilon at delta, exactly (Balle and Wang 2018, theorem 8)."""
        import dp_accounting

        return float(dp_accounting.get_epsilon_gaussian(self.sigma, delta))

    def delta(self, epsilon: float) -> float:
        """Delta at epsilon, exactly: Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu) with mu = 1 / s."""
        from scipy.special import log_ndtr

        half, shift = 1 / (2 * self.sigma), epsilon * self.sigma
        above, below = float(log_ndtr(half - shift)), float(log_ndtr(-half - shift))
        return math.exp(above) * -math.expm1(min(epsilon + below - above, 0.0))

    @property
    def coarsening(self) -> float:
        return self._sampled.coarsening

    def repeats(self, width: float) -> tuple[Repeats]:
        return self._sampled.repeats(width)

    def renyi(self, orders: Sequence[float]) -> Any:
        """a / (2 s^2) at each order a."""
        import numpy as np

        return np.array([order / (2 * self.sigma**2) for order in orders])

    @property
    def _sampled(self) -> SampledGaussians:
        return SampledGaussians(sigma=self.sigma, probability=1.0, steps=1)


class ToeplitzGaussian(OneGaussianTheorem):
    """C times the sums, with independent noise, is one Gaussian release; multiplying by C^-1 is post-processing."""

    mechanisms = (BandedToeplitz,)
    name = "Gaussian mechanism with Toeplitz-correlated noise"
    citation = (
        "Dvijotham, McMahan, Pillutla, Steinke and Thakurta 2024 (arXiv 2405.13763), theorem 2 (sensitivity); Denisov "
        "et al. 2022 (arXiv 2202.08312), theorem 2.1 (adaptivity); Balle and Wang 2018, theorem 8"
    )

    def squared_sensitivity(self, plan: Plan, steps: int) -> float:
        """S^2 of the first `steps` rows and columns of C. These releases depend on no others."""
        mechanism = plan.mechanism
        assert isinstance(mechanism, BandedToeplitz)
        return _cached_sensitivity(replace(mechanism, noise_multiplier=1.0), steps, gap(plan))


@functools.lru_cache(maxsize=64)
def _cached_sensitivity(mechanism: BandedToeplitz, steps: int, gap: int) -> float:
    """Cached, because calibration tries dozens of noise multipliers."""
    return squared_sensitivity(mechanism.column(steps), gap)


def squared_sensitivity(column: Any, gap: int) -> float:
    """S^2 = || sum_i C e_(i gap) ||^2 of a lower triangular Toeplitz C, for units that take part every `gap` steps.

    Args:
        column: c_0, c_1, ..., c_(T-1), the first column of C: an array of shape (steps,).
        gap: the least number of steps between two participations of one unit.

    **Guarantee.** Exact if c is non-increasing and non-negative: then the unit that starts in the first step moves C
    times the sums the most. Otherwise an upper bound: that of the least such sequence above |c|.
    """
    import numpy as np

    above = np.maximum.accumulate(np.abs(column)[::-1])[::-1]
    rows = np.zeros(-(-len(above) // gap) * gap)
    rows[: len(above)] = above
    moved = np.cumsum(rows.reshape(-1, gap), axis=0).reshape(-1)[: len(above)]
    return float(moved @ moved)


class TreeAggregation(OneGaussianTheorem):
    """The noisy nodes of all trees are one Gaussian release; everything computed from them is post-processing."""

    mechanisms = (Tree,)
    name = "Gaussian mechanism with tree aggregation"
    citation = (
        "Kairouz et al. 2021 (arXiv 2103.00039), appendix D (several participations, restarts); Denisov et al. 2022 "
        "(arXiv 2202.08312), theorem 2.1 (adaptivity); Balle and Wang 2018, theorem 8"
    )

    def squared_sensitivity(self, plan: Plan, steps: int) -> int:
        """For the worst unit, the sum over all nodes of the squared number of the unit's steps below the node."""
        tree = plan.mechanism
        assert isinstance(tree, Tree)
        return squared_tree_sensitivity(steps, gap(plan), tree.steps_per_tree, tree.completed)


@functools.lru_cache(maxsize=64)
def squared_tree_sensitivity(steps: int, gap: int, steps_per_tree: int | None = None, completed: bool = False) -> int:
    """S^2 of trees over `steps` steps, for units that take part in every `gap`-th step, starting anywhere.

    The number of steps determines which trees were completed: all that are followed by another one.

    **Guarantee.** Exact: a node moves by the number of the unit's steps below it if all of the unit's vectors agree.

    >>> squared_tree_sensitivity(8, 8), squared_tree_sensitivity(9, 4), squared_tree_sensitivity(7, 3)
    (4, 11, 9)
    """
    import numpy as np

    length = steps_per_tree or steps
    earlier, last = (steps - 1) // length, (steps - 1) % length + 1
    whole = _squares(length, 1 << (length - 1).bit_length() if completed else length, gap)
    total = np.zeros(gap)  # by unit, indexed by its first step
    for squares, starts in ((whole, np.arange(earlier) * length), (_squares(last, last, gap), [earlier * length])):
        units = np.add.outer(starts, np.arange(len(squares))) % gap
        total += np.bincount(units.reshape(-1), np.tile(squares, len(starts)), gap)
    return int(total.max())


def _squares(steps: int, leaves: int, gap: int) -> Any:
    """The sums over the complete nodes of one tree, shape (min(gap, steps),), by the unit's first step in it."""
    import numpy as np

    first = np.arange(min(gap, steps))[:, None]
    total = np.zeros(len(first), dtype=np.int64)
    width = 1
    while width <= leaves:
        end = leaves // width * width
        # A unit takes part at most once in a node no wider than the gap, so counting the nodes with a participation
        # is enough.
        edges = np.arange(0, end + 1, width) if width > gap else np.array([0, end])
        before = np.maximum(-(-(np.minimum(edges, steps) - first) // gap), 0)
        total += (np.diff(before) ** (2 if width > gap else 1)).sum(axis=1)
        width *= 2
    return total
