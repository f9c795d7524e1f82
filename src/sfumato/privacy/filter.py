"""A privacy filter: a total budget for plans that are chosen one after the other, in view of earlier results."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from sfumato._checks import SfumatoError, fraction, one_of, positive, within
from sfumato.privacy.loss import Loss
from sfumato.privacy.plan import PrivacyPlan
from sfumato.privacy.unit import ADJACENCIES, UNITS, Adjacency


@dataclass(frozen=True, kw_only=True)
class PrivacyFilter:
    """A total (epsilon, delta), and the rule by which plans count against it. All of it is fixed before the first plan.

    Args:
        epsilon, delta: the total.
        unit: the unit of the total, "example" or "user".
        adjacency: the relation under which it holds. Zero-out admits plans of both adjacencies, because each plan holds
            for zero-out with the same epsilon. Add-or-remove admits only its own.
        order: the one Renyi order a > 1 at which all plans are counted.

    **Guarantee.** All releases of the admitted plans together are (epsilon, delta)-differentially private for the unit
    and adjacency.

    Each plan may be chosen in view of all earlier releases and may begin while others are running. The total is a
    filter: sum_i rho_a(plan_i) <= rho at the fixed order a makes all of them (a, rho)-Renyi private (Feldman and Zrnic
    2021, section 3; for overlapping runs Haney et al. 2023, arXiv 2309.05901), which is (epsilon, delta) with epsilon =
    rho + log(1 - 1 / a) - log(delta a) / (a - 1) (Canonne, Kamath and Steinke 2020, proposition 12). Choosing an order
    for each plan, or afterwards, would void this; so there is one order, a function of epsilon and delta alone.

    Published figures have their own guarantee, for the records of the test part (`figures`, pure epsilon). In each
    run the larger of the plan's cost and the figures' cost counts: a record is in only one part of a run, even if it is
    in the other part in another run.
    """

    epsilon: float
    delta: float
    order: float
    unit: str = "example"
    adjacency: Adjacency = "add-or-remove"

    def __post_init__(self) -> None:
        positive(epsilon=self.epsilon, remedy="give the budget of all runs together, a number such as 8")
        fraction(delta=self.delta, remedy="give a number such as 1e-5, well below 1/N")
        one_of(UNITS, unit=self.unit)
        one_of(ADJACENCIES, adjacency=self.adjacency)
        within(1.01, None, order=self.order)

    @classmethod
    def for_total(cls, *, epsilon: float, delta: float, **others: Any) -> PrivacyFilter:
        """The filter for a total, at the order that admits the most Gaussian releases."""
        checked = cls(epsilon=epsilon, delta=delta, order=2.0, **others)
        return replace(checked, order=best_order(epsilon, delta))

    # -- the cost of plans -----------------------------------------------------------------------------------------

    @cached_property
    def limit(self) -> float:
        """The limit for the sum of costs: rho at the order.

        **Guarantee.** `epsilon_of(limit) <= epsilon`.
        """
        most = _most_renyi(self.order, self.epsilon, self.delta)
        while most > 0 and self.epsilon_of(most) > self.epsilon:  # rounding in the last digits
            most *= 1 - 1e-12
        return most

    def cost(self, plan: PrivacyPlan, figures: float | None = None) -> float:
        """The share of `limit` that a plan uses, including the figures that its run publishes.

        Errors: `SfumatoError` for another unit or adjacency, for a plan without a Renyi divergence, and for an infinite
        cost.
        """
        self.check(plan)
        cost = float(plan.loss.renyi([self.order])[0])
        if figures is not None:
            cost = max(cost, self.cost_of_pure(figures))
        if not math.isfinite(cost):
            raise SfumatoError("the plan has no finite Renyi divergence", "give a plan with more noise")
        return cost

    def cost_of_pure(self, epsilon: float) -> float:
        """The cost of an (epsilon, 0)-private release: that of randomized response, which dominates all of them."""
        return renyi_of_pure(epsilon, self.order)

    def check(self, plan: PrivacyPlan) -> None:
        """Refuse a plan of another unit, or of an adjacency that implies nothing for this one."""
        if plan.unit.name != self.unit:
            raise SfumatoError(
                f"the budget is for each single {self.unit}, but the plan for each single {plan.unit.name}: the two do "
                "not add up",
                f"name a budget for each {plan.unit.name}, set with `unit={plan.unit.name}`",
            )
        if self.adjacency not in (plan.adjacency, "zero-out"):
            raise SfumatoError(
                f"the budget holds for {self.adjacency} adjacency, but the plan only for {plan.adjacency}",
                f"give `adjacency={self.adjacency}`, or set a budget for zero-out, which admits both",
            )

    # -- whether one more plan fits --------------------------------------------------------------------------------

    def fits(self, costs: Sequence[float]) -> bool:
        """Whether releases with these costs stay within the total."""
        return math.fsum(costs) <= self.limit

    def epsilon_of(self, cost: float) -> float:
        """Epsilon at delta of releases with this total cost, if that total had been fixed in advance."""
        if cost <= 0:
            return 0.0
        from dp_accounting import rdp

        return float(rdp.compute_epsilon([self.order], [cost], self.delta)[0])

    def composed_epsilon(self, plans: Sequence[PrivacyPlan]) -> float:
        """Epsilon at delta of these plans by their privacy loss distributions, if all of them had been fixed before the
        first."""
        return joint_loss(plans).epsilon(self.delta)

    def with_enough_noise(self, plan: PrivacyPlan, left: float) -> PrivacyPlan | None:
        """The plan with just enough more noise to cost at most `left`. None if none is found."""
        if left <= 0:
            return None
        low = high = plan.noise_multiplier
        try:
            while self.cost(plan.with_noise(high)) > left:
                low, high = high, 2 * high
            for _ in range(20):
                middle = math.sqrt(low * high)
                low, high = (low, middle) if self.cost(plan.with_noise(middle)) <= left else (middle, high)
            return plan.with_noise(high)
        except SfumatoError:
            return None

    # -- identity --------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Plain data that `from_dict` reads back."""
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "unit": self.unit,
            "adjacency": self.adjacency,
            "accounting": "renyi",
            "order": self.order,
            "plans": [],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PrivacyFilter:
        """The filter that `to_dict` wrote."""
        values = dict(data)
        if (values.pop("accounting"), values.pop("plans")) != ("renyi", []):
            raise SfumatoError("the budget adds up plans otherwise than by Renyi divergences", "set another one")
        return cls(**values)

    @property
    def rule(self) -> str:
        """How plans add up, in words."""
        return (
            f"the sum of Renyi divergences at the order {self.order:g}, of plans that may be chosen after seeing "
            "earlier results"
        )


def joint_loss(plans: Sequence[PrivacyPlan]) -> Loss:
    """The loss of all plans together, had they been fixed before the first.

    Plans of different adjacencies count for zero-out, for which each of them holds with the same epsilon.
    """
    if len({plan.adjacency for plan in plans}) > 1:
        plans = [replace(plan, adjacency="zero-out") for plan in plans]
    first, *others = (plan.loss for plan in plans)
    return first.composed_with(*others)


def best_order(epsilon: float, delta: float) -> float:
    """The Renyi order a at which a filter with this total admits the most Gaussian releases.

    A Gaussian release costs rho = a mu^2 / 2, so this is where 2 rho / a is largest for the total's rho. A function of
    epsilon and delta alone, rounded to two decimals below 10 and to whole numbers above.
    """
    from scipy.optimize import minimize_scalar

    optimum: Any = minimize_scalar(
        lambda log: -_most_renyi(1 + math.exp(log), epsilon, delta) / (1 + math.exp(log)),
        bounds=(math.log(0.02), math.log(1e6)),
        method="bounded",
        options={"xatol": 1e-6},
    )
    order = 1 + math.exp(float(optimum.x))
    return max(round(order, 2), 1.02) if order < 10 else float(round(order))


def _most_renyi(order: float, epsilon: float, delta: float) -> float:
    """rho with rho + log(1 - 1 / a) - log(delta a) / (a - 1) = epsilon."""
    return epsilon - math.log1p(-1 / order) + math.log(delta * order) / (order - 1)


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
