"""A privacy filter: a total budget for plans that are chosen one after the other, in view of earlier results."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any

from sfumato._checks import SfumatoError, fraction, one_of, positive
from sfumato.privacy import calibration
from sfumato.privacy.plan import PrivacyPlan
from sfumato.privacy.statements.display import rounded_up
from sfumato.privacy.theorems.composed_gaussian import OneGaussian
from sfumato.privacy.unit import ADJACENCIES, UNITS, Adjacency

RENYI, GAUSSIAN, PLANNED = ACCOUNTINGS = ("renyi", "gaussian", "planned")
"""How plans add up: by Renyi divergences at one order, by the squares of mu, or as one list fixed in advance."""


@dataclass(frozen=True, kw_only=True)
class PrivacyFilter:
    """A total (epsilon, delta), and the rule by which plans count against it. All of it is fixed before the first plan.

    Args:
        epsilon, delta: the total.
        unit: the unit of the total, "example" or "user".
        adjacency: the relation under which it holds. Zero-out admits plans of both adjacencies, because each plan holds
            for zero-out with the same epsilon. Add-or-remove admits only its own.
        accounting: "renyi", "gaussian" or "planned".
        order: for "renyi", the one Renyi order a > 1 at which all plans are counted.
        plans: for "planned", all future plans, one for each run.

    **Guarantee.** All releases of the admitted plans together are (epsilon, delta)-differentially private for the unit
    and adjacency.

    - renyi: each plan may be chosen in view of all earlier releases and may begin while others are running. The total
      is a filter: sum_i rho_a(plan_i) <= rho at the fixed order a makes all of them (a, rho)-Renyi private (Feldman and
      Zrnic 2021, section 3; for overlapping runs Haney et al. 2023, arXiv 2309.05901), which is (epsilon, delta) with
      epsilon = rho + log(1 - 1 / a) - log(delta a) / (a - 1) (Canonne, Kamath and Steinke 2020, proposition 12).
      Choosing an order for each plan, or afterwards, would void this; so there is one order, a function of epsilon and
      delta alone.
    - gaussian: likewise, for plans that are exactly one Gaussian mechanism: sum_i mu_i^2 <= mu^2 (Smith and Thakurta
      2022, arXiv 2210.17520), with mu by Balle and Wang 2018, theorem 8.
    - planned: all plans are known in advance and compose by their privacy loss distributions (`Loss`). Each run uses
      one plan of the list, each plan as often as the list contains it. Anything not in the list is refused.

    Published figures have their own guarantee, for the records of the test part (`figures`, pure epsilon). In each
    run the larger of the plan's cost and the figures' cost counts: a record is in only one part of a run, even if it is
    in the other part in another run.
    """

    epsilon: float
    delta: float
    unit: str = "example"
    adjacency: Adjacency = "add-or-remove"
    accounting: str = RENYI
    order: float | None = None
    plans: tuple[PrivacyPlan, ...] = ()

    def __post_init__(self) -> None:
        positive("epsilon", self.epsilon, remedy="give the budget of all runs together, a number such as 8")
        fraction("delta", self.delta, remedy="give a number such as 1e-5, well below 1/N")
        one_of("unit", self.unit, UNITS)
        one_of("adjacency", self.adjacency, ADJACENCIES)
        one_of("accounting", self.accounting, ACCOUNTINGS)
        if (self.accounting == RENYI) != (self.order is not None) or (self.order is not None and not self.order > 1):
            raise SfumatoError(f"order is {self.order!r} of accounting {self.accounting}", "give one above 1 for renyi")
        if (self.accounting == PLANNED) != bool(self.plans):
            raise SfumatoError(
                f"accounting is {self.accounting}, but {len(self.plans) or 'no'} `plans` are given",
                "give all plans for planned, and none otherwise",
            )
        for plan in self.plans:
            self.check(plan)

    @classmethod
    def for_total(cls, *, epsilon: float, delta: float, accounting: str = RENYI, **others: Any) -> PrivacyFilter:
        """The filter for a total. For "renyi", at the order that admits the most Gaussian releases."""
        positive("epsilon", epsilon, remedy="give the budget of all runs together, a number such as 8")
        fraction("delta", delta, remedy="give a number such as 1e-5, well below 1/N")
        order = best_order(epsilon, delta) if accounting == RENYI else None
        made = cls(epsilon=epsilon, delta=delta, accounting=accounting, order=order, **others)
        made.check_planned()
        return made

    def check_planned(self) -> None:
        """Refuse planned runs that together cost more than the total."""
        if self.plans and (together := self.composed_epsilon(self.plans)) > self.epsilon:
            raise SfumatoError(
                f"epsilon {self.epsilon:g} is less than the {rounded_up(together)} that the plans cost together at "
                f"delta {self.delta!r}",
                "give a larger epsilon, or fewer plans",
            )

    # -- the cost of plans -----------------------------------------------------------------------------------------

    @cached_property
    def limit(self) -> float:
        """The limit for the sum of costs, in their unit: rho at the order, mu^2, or the number of planned runs.

        **Guarantee.** `epsilon_of(limit) <= epsilon`.
        """
        if self.accounting == PLANNED:
            return float(len(self.plans))
        if self.order is not None:
            most = _most_renyi(self.order, self.epsilon, self.delta)
        else:
            most = calibration.gaussian_mu(self.epsilon, self.delta) ** 2
        while most > 0 and self.epsilon_of(most) > self.epsilon:  # rounding in the last digits
            most *= 1 - 1e-12
        return most

    def cost(self, plan: PrivacyPlan, figures: float | None = None) -> float:
        """The share of `limit` that a plan uses, including the figures that its run publishes.

        Errors: `SfumatoError` for another unit or adjacency, for a plan without a cost by this accounting, and for an
        infinite cost.
        """
        self.check(plan)
        if self.accounting == PLANNED:
            if figures is not None:
                raise SfumatoError(
                    "a planned budget counts plans only, but this run publishes figures",
                    "leave that out, or set a budget with accounting renyi",
                )
            return 1.0
        cost = self._renyi(plan) if self.accounting == RENYI else self._squared_mu(plan)
        if figures is not None:
            cost = max(cost, self.cost_of_pure(figures))
        if not math.isfinite(cost):
            raise SfumatoError(
                f"the plan has no finite loss by accounting {self.accounting}", "give a plan with more noise"
            )
        return cost

    def cost_of_pure(self, epsilon: float) -> float:
        """The cost of an (epsilon, 0)-private release: that of randomized response, which dominates all of them."""
        if self.order is not None:
            return renyi_of_pure(epsilon, self.order)
        from scipy.special import expit, ndtri

        # G_mu through (p, p), p = 1 / (1 + e^epsilon), lies below the two chords that make up an (epsilon, 0) curve.
        return float(2 * ndtri(expit(-epsilon))) ** 2

    def check(self, plan: PrivacyPlan) -> None:
        """Refuse a plan of another unit, or of an adjacency that implies nothing for this one."""
        if plan.unit.name != self.unit:
            raise SfumatoError(
                f"the budget is for each single {self.unit}, but the plan for each single {plan.unit.name}: the two do "
                "not add up",
                f"give `unit={self.unit}`, or another budget",
            )
        if self.adjacency not in (plan.adjacency, "zero-out"):
            raise SfumatoError(
                f"the budget holds for {self.adjacency} adjacency, but the plan only for {plan.adjacency}",
                f"give `adjacency={self.adjacency}`, or set a budget for zero-out, which admits both",
            )

    def _renyi(self, plan: PrivacyPlan) -> float:
        assert self.order is not None
        if "rdp" not in plan.loss.accountants:
            raise SfumatoError(
                f"the budget counts Renyi divergences, and none is known for a plan by the {plan.theorem.name}",
                "use participation poisson without truncation and sample whole units, or set a budget with accounting "
                "planned",
            )
        return float(plan.loss.renyi([self.order])[0])

    def _squared_mu(self, plan: PrivacyPlan) -> float:
        parts = plan.loss.parts
        if not parts or not all(isinstance(part, OneGaussian) for part in parts):
            raise SfumatoError(
                f"the budget adds up exact Gaussian releases, but this is {plan.theorem.name}",
                "use participation full-batch or fixed-order, or set a budget with accounting renyi",
            )
        return math.fsum(part.precision for part in parts if isinstance(part, OneGaussian))

    # -- whether one more plan fits --------------------------------------------------------------------------------

    def fits(self, costs: Sequence[float]) -> bool:
        """Whether releases with these costs stay within the total."""
        return math.fsum(costs) <= self.limit

    def is_planned(self, plan: PrivacyPlan, earlier: Sequence[PrivacyPlan]) -> bool:
        """Whether the list of plans still has this one. Always true for other accountings."""
        if self.accounting != PLANNED:
            return True
        remaining = Counter(plan.fingerprint for plan in self.plans)
        remaining.subtract(plan.fingerprint for plan in earlier)
        return remaining[plan.fingerprint] > 0

    def epsilon_of(self, cost: float) -> float:
        """Epsilon at delta of releases with this total cost, if that total had been fixed in advance."""
        if cost <= 0:
            return 0.0
        if self.order is not None:
            from dp_accounting import rdp

            return float(rdp.compute_epsilon([self.order], [cost], self.delta)[0])
        if self.accounting == GAUSSIAN:
            return OneGaussian(precision=cost).epsilon(self.delta)
        return self.composed_epsilon(self.plans)

    def composed_epsilon(self, plans: Sequence[PrivacyPlan]) -> float:
        """Epsilon at delta of these plans by their privacy loss distributions, if all of them had been fixed before the
        first."""
        if len({plan.adjacency for plan in plans}) > 1:
            plans = [replace(plan, adjacency="zero-out") for plan in plans]
        losses = [plan.loss for plan in plans]
        return reduce(lambda total, loss: total.composed_with(loss), losses).epsilon(self.delta)

    def with_enough_noise(self, plan: PrivacyPlan, left: float) -> PrivacyPlan | None:
        """The plan with just enough more noise to cost at most `left`. None if none is found."""
        if left <= 0 or self.accounting == PLANNED:
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
            "accounting": self.accounting,
            "order": self.order,
            "plans": [plan.to_dict() for plan in self.plans],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PrivacyFilter:
        """The filter that `to_dict` wrote."""
        plans = tuple(PrivacyPlan.from_dict(plan) for plan in data["plans"])
        return cls(**{**data, "plans": plans})

    @property
    def rule(self) -> str:
        """How plans add up, in words."""
        if self.accounting == PLANNED:
            return f"one list of {len(self.plans)} plans, fixed in advance and composed by privacy loss distributions"
        if self.accounting == GAUSSIAN:
            return "the sum of mu^2 of exact Gaussian releases, which may be chosen after seeing earlier results"
        return (
            f"the sum of Renyi divergences at the order {self.order:g}, of plans that may be chosen after seeing "
            "earlier results"
        )


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
