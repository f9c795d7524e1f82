"""The privacy cost of several runs on the same data, for each unit separately: different units don't compose."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from sfumato.privacy import PrivacyPlan
from sfumato.privacy.unit import Adjacency

CONVOLVED = 8
"""The most different plans that are composed by convolution."""


class JointCost(NamedTuple):
    """The joint cost of runs with one unit.

    Attributes:
        unit: "example" or "user".
        runs: the number of runs.
        epsilon, delta: the cost for one unit that is in the data of every run.
    """

    unit: str
    runs: int
    epsilon: float
    delta: float


def joint_costs(many: Sequence[PrivacyPlan]) -> list[JointCost]:
    """The joint cost of all runs, for each unit separately, starting with the unit of the first run."""
    units = dict.fromkeys(plan.unit.name for plan in many)
    parts = {unit: [plan for plan in many if plan.unit.name == unit] for unit in units}
    return [JointCost(unit, len(part), *joint_cost(part)) for unit, part in parts.items()]


def joint_cost(many: Sequence[PrivacyPlan]) -> tuple[float, float]:
    """(epsilon, delta) of all runs together, at the largest of their deltas. All must have the same unit.

    **Guarantee.** Composition of the plans' releases for one unit that is in the data of every run, provided that the
    plans were fixed before the first run (`Loss`). Plans of different adjacencies are composed for zero-out, for which
    each of them holds. Data that were both changed and moved are not recognised, so the number of runs is a lower
    bound.
    """
    delta = max(plan.delta for plan in many)
    return _composed(many, delta), delta


def adjacency_of(many: Sequence[PrivacyPlan]) -> Adjacency:
    """The adjacency for which `joint_cost` holds: the one that all uses share, or zero-out if they differ."""
    found: set[Adjacency] = {plan.adjacency for plan in many}
    return found.pop() if len(found) == 1 else "zero-out"


def _composed(many: Sequence[PrivacyPlan], delta: float) -> float:
    """Epsilon of all plans together at this delta.

    The convolution of many different sampled plans would take long. For them it is the smaller of two bounds: Renyi DP,
    and the sum of each plan's epsilon at an equal share of delta.
    """
    if len({plan.adjacency for plan in many}) > 1:  # each of them holds for zero-out with the same epsilon
        many = [replace(plan, adjacency="zero-out") for plan in many]
    first, *others = (plan.loss for plan in many)
    loss = first.composed_with(*others)
    if len(loss.parts) <= CONVOLVED:
        return loss.epsilon(delta)
    share = delta / len(loss.parts)
    apart = math.fsum(replace(loss, parts=(part,)).epsilon(share) for part in loss.parts)
    return min(apart, loss.epsilon(delta, accountant="rdp")) if "rdp" in loss.accountants else apart
