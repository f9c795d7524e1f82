"""The privacy cost of several runs on the same data, for each unit separately: different units don't compose."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from sfumato.privacy import PrivacyPlan, PrivateSelection
from sfumato.privacy.unit import Adjacency

CONVOLVED = 8
"""The most different plans that are composed by convolution."""

Use = PrivacyPlan | PrivateSelection


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


def joint_costs(many: Sequence[Use]) -> list[JointCost]:
    """The joint cost of all runs, for each unit separately, starting with the unit of the first run."""
    units = dict.fromkeys(map(unit_of, many))
    parts = {unit: [use for use in many if unit_of(use) == unit] for unit in units}
    return [JointCost(unit, len(part), *joint_cost(part)) for unit, part in parts.items()]


def unit_of(use: Use) -> str:
    """The unit of a use's promise: "example" or "user"."""
    return _plan_of(use).unit.name


def _plan_of(use: Use) -> PrivacyPlan:
    return use.plan if isinstance(use, PrivateSelection) else use


def joint_cost(many: Sequence[Use]) -> tuple[float, float]:
    """(epsilon, delta) of all runs together, at the largest of their deltas. All must have the same unit.

    **Guarantee.** Composition of the plans' releases for one unit that is in the data of every run, provided that
    the plans were fixed before the first run (`Loss`). Private selections are added by basic composition, each at an
    equal share of delta. Plans of different adjacencies are composed for zero-out, for which each of them holds. Data
    that were both changed and moved are not recognised, so the number of runs is a lower bound.
    """
    selections = [use for use in many if isinstance(use, PrivateSelection)]
    runs = [use for use in many if isinstance(use, PrivacyPlan)]
    delta = max(plan.delta for plan in (*runs, *(selection.plan for selection in selections)))
    if not selections:
        return _composed(runs, delta), delta
    share = delta / (len(selections) + bool(runs))
    epsilon = math.fsum(selection.epsilon(share) for selection in selections)
    return epsilon + (_composed(runs, share) if runs else 0.0), delta


def adjacency_of(many: Sequence[Use]) -> Adjacency:
    """The adjacency for which `joint_cost` holds: the one that all uses share, or zero-out if they differ."""
    found: set[Adjacency] = {_plan_of(use).adjacency for use in many}
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
