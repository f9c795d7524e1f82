"""A privacy filter: a total that plans chosen one after the other, in view of earlier results, must keep to."""

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
from sfumato.privacy.selection import PrivateSelection
from sfumato.privacy.statements.presented import rounded_up
from sfumato.privacy.theorems.composed_gaussian import OneGaussian
from sfumato.privacy.theorems.selection import renyi_of_pure
from sfumato.privacy.unit import ADJACENCIES, UNITS, Adjacency

Use = PrivacyPlan | PrivateSelection
RENYI, GAUSSIAN, PLANNED = ACCOUNTINGS = ("renyi", "gaussian", "planned")
"""How plans add up: their Renyi divergences at one order, the squares of their mu, or as one list fixed beforehand."""


@dataclass(frozen=True, kw_only=True)
class PrivacyFilter:
    """A total (epsilon, delta), and the rule by which plans count against it; all of it fixed before the first plan.

    Args:
        epsilon, delta: the total.
        unit: what it speaks of, "example" or "user".
        adjacency: the relation under which it holds. Zero-out admits plans of both adjacencies, since each plan holds
            for zero-out at the same figure; add-or-remove admits its own alone.
        accounting: "renyi", "gaussian" or "planned".
        order: of "renyi", the one Renyi order a > 1 at which all plans are counted.
        plans: of "planned", all plans that there will be, one for each run.

    **Guarantee.** All releases of the admitted plans together are (epsilon, delta)-differentially private for the unit
    and adjacency.

    - renyi: each plan may be chosen in view of all earlier releases, and begin while others are going on. The total is
      a filter: sum_i rho_a(plan_i) <= rho at the fixed order a makes all of them (a, rho)-Renyi private (Feldman and
      Zrnic 2021, section 3; of runs that overlap Haney et al. 2023, arXiv 2309.05901), which is (epsilon, delta)
      with epsilon = rho + log(1 - 1 / a) - log(delta a) / (a - 1) (Canonne, Kamath and Steinke 2020, proposition 12).
      An order chosen for each plan, or afterwards, would void it: so is there one, chosen from epsilon and delta alone.
    - gaussian: likewise, for plans that are exactly one Gaussian mechanism: sum_i mu_i^2 <= mu^2 (Smith and Thakurta
      2022, arXiv 2210.17520), and mu by Balle and Wang 2018, theorem 8.
    - planned: the plans are all known beforehand and compose by their privacy loss distributions (`Loss`); a run may
      have none but one of them, each as often as it stands there. What was not planned is refused.

    A figure for those who are in the test part (`figures`, pure epsilon) counts by the larger of the two in each run:
    one record is in one part of a run, whichever part it is in another one.
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
                f"accounting is {self.accounting}, and {len(self.plans) or 'no'} `plans` are given",
                "give all plans for planned, and none for others",
            )
        for plan in self.plans:
            self.check(plan)

    @classmethod
    def of(cls, *, epsilon: float, delta: float, accounting: str = RENYI, **others: Any) -> PrivacyFilter:
        """The filter of a total; for "renyi" at the order that lets the most Gaussian releases through."""
        positive("epsilon", epsilon, remedy="give the budget of all runs together, a number such as 8")
        fraction("delta", delta, remedy="give a number such as 1e-5, well below 1/N")
        order = best_order(epsilon, delta) if accounting == RENYI else None
        made = cls(epsilon=epsilon, delta=delta, accounting=accounting, order=order, **others)
        made.check_planned()
        return made

    def check_planned(self) -> None:
        """Refuse planned runs that cost more than the total."""
        if self.plans and (together := self.composed(self.plans)) > self.epsilon:
            raise SfumatoError(
                f"epsilon {self.epsilon:g} is less than the {rounded_up(together)} that the plans cost together at "
                f"delta {self.delta!r}",
                "give a larger epsilon, or fewer plans",
            )

    # -- what plans cost -------------------------------------------------------------------------------------------

    @cached_property
    def limit(self) -> float:
        """What costs may add up to, in their own measure: rho at the order, mu^2, or the number of planned runs.

        **Guarantee.** `epsilon_of(limit) <= epsilon`.
        """
        if self.accounting == PLANNED:
            return float(len(self.plans))
        if self.order is not None:
            most = _most_renyi(self.order, self.epsilon, self.delta)
        else:
            most = calibration.gaussian_mu(self.epsilon, self.delta) ** 2
        while most > 0 and self.epsilon_of(most) > self.epsilon:  # its last digits
            most *= 1 - 1e-12
        return most

    def cost(self, use: Use, figures: float | None = None) -> float:
        """What a plan, or a whole private selection, takes of `limit`, with the figures that it publishes.

        Errors: `SfumatoError` for one of another unit or adjacency, one that has no cost by this accounting, and one
        without end.
        """
        self.check(use)
        if self.accounting == PLANNED:
            if isinstance(use, PrivateSelection) or figures is not None:
                raise SfumatoError(
                    "a planned budget counts plans alone, and this is a private selection or publishes figures",
                    "leave that out, or set a budget with accounting renyi",
                )
            return 1.0
        cost = self._renyi(use) if self.accounting == RENYI else self._squared_mu(use)
        if figures is not None:
            cost = max(cost, self.cost_of_pure(figures))
        if not math.isfinite(cost):
            raise SfumatoError(
                f"the plan has no finite loss by accounting {self.accounting}", "give a plan with more noise"
            )
        return cost

    def cost_of_pure(self, epsilon: float) -> float:
        """What an (epsilon, 0)-private release takes: that of randomized response, which dominates all of them."""
        if self.order is not None:
            return renyi_of_pure(epsilon, self.order)
        from scipy.special import expit, ndtri

        # G_mu through (p, p), p = 1 / (1 + e^epsilon), lies below the two chords that an (epsilon, 0) curve is.
        return float(2 * ndtri(expit(-epsilon))) ** 2

    def check(self, use: Use) -> None:
        """Refuse a plan of another unit, or of an adjacency that says nothing of this one."""
        plan = use.plan if isinstance(use, PrivateSelection) else use
        if plan.unit.name != self.unit:
            raise SfumatoError(
                f"the budget is for each single {self.unit}, and the plan for each single {plan.unit.name}: the two do "
                "not add up",
                f"give `unit={self.unit}`, or another budget",
            )
        if self.adjacency not in (plan.adjacency, "zero-out"):
            raise SfumatoError(
                f"the budget holds for {self.adjacency} adjacency, and the plan for {plan.adjacency}, which is less",
                f"give `adjacency={self.adjacency}`, or set a budget for zero-out, which counts both",
            )

    def _renyi(self, use: Use) -> float:
        """The divergence at the order; or where its series does not converge there, at the next whole order, which is
        no less: Renyi divergences rise with the order."""
        assert self.order is not None
        if isinstance(use, PrivacyPlan) and "rdp" not in use.loss.accountants:
            raise SfumatoError(
                f"the budget counts Renyi divergences, and none is known of a plan by the {use.theorem.name}",
                "take participation poisson without a cut and draw whole units, or set a budget with accounting "
                "planned",
            )
        cost = math.inf
        for order in (self.order, float(math.ceil(self.order))):
            if not math.isfinite(cost):
                cost = use.renyi(order) if isinstance(use, PrivateSelection) else float(use.loss.renyi([order])[0])
        return cost

    def _squared_mu(self, use: Use) -> float:
        parts = () if isinstance(use, PrivateSelection) else use.loss.parts
        if not parts or not all(isinstance(part, OneGaussian) for part in parts):
            raise SfumatoError(
                f"the budget adds up exact Gaussian releases, and this is {use.theorem.name}",
                "take participation full-batch or fixed-order, or set a budget with accounting renyi",
            )
        return math.fsum(part.precision for part in parts if isinstance(part, OneGaussian))

    # -- whether one more fits -------------------------------------------------------------------------------------

    def fits(self, costs: Sequence[float]) -> bool:
        """Whether releases of these costs keep to the total."""
        return math.fsum(costs) <= self.limit

    def planned(self, use: Use, earlier: Sequence[Use]) -> bool:
        """Whether the list of plans has this one still; of other accountings all are."""
        if self.accounting != PLANNED:
            return True
        left = Counter(plan.fingerprint for plan in self.plans)
        left.subtract(one.fingerprint for one in earlier)
        return left[use.fingerprint] > 0

    def epsilon_of(self, cost: float) -> float:
        """Epsilon at delta of releases that cost so much together, had that total been fixed beforehand."""
        if cost <= 0:
            return 0.0
        if self.order is not None:
            from dp_accounting import rdp

            return float(rdp.compute_epsilon([self.order], [cost], self.delta)[0])
        if self.accounting == GAUSSIAN:
            return OneGaussian(precision=cost).epsilon(self.delta)
        return self.composed(self.plans)

    def composed(self, plans: Sequence[PrivacyPlan]) -> float:
        """Epsilon at delta of these plans by their privacy loss distributions: what they come to if all of them were
        fixed before the first."""
        if len({plan.adjacency for plan in plans}) > 1:
            plans = [replace(plan, adjacency="zero-out") for plan in plans]
        losses = [plan.loss for plan in plans]
        return reduce(lambda total, one: total.with_(one), losses).epsilon(self.delta)

    def most_noise_left(self, plan: PrivacyPlan, left: float) -> PrivacyPlan | None:
        """The plan with as much more noise as it takes to cost no more than `left`; None where none is found."""
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

    # -- its identity ----------------------------------------------------------------------------------------------

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
            return f"one list of {len(self.plans)} plans, fixed beforehand and composed by privacy loss distributions"
        if self.accounting == GAUSSIAN:
            return "the sum of mu^2 of exact Gaussian releases, which may be chosen after seeing earlier results"
        return (
            f"the sum of Renyi divergences at the order {self.order:g}, of plans that may be chosen after seeing "
            "earlier results"
        )


def best_order(epsilon: float, delta: float) -> float:
    """The Renyi order a at which a filter of this total lets the most Gaussian releases through.

    They cost rho = a mu^2 / 2, so it is where 2 rho / a is largest for the rho that the total allows. A function of
    epsilon and delta alone: to two decimals below 10, and whole above.
    """
    from scipy.optimize import minimize_scalar

    found: Any = minimize_scalar(
        lambda log: -_most_renyi(1 + math.exp(log), epsilon, delta) / (1 + math.exp(log)),
        bounds=(math.log(0.02), math.log(1e6)),
        method="bounded",
        options={"xatol": 1e-6},
    )
    order = 1 + math.exp(float(found.x))
    return max(round(order, 2), 1.02) if order < 10 else float(round(order))


def _most_renyi(order: float, epsilon: float, delta: float) -> float:
    """rho with rho + log(1 - 1 / a) - log(delta a) / (a - 1) = epsilon."""
    return epsilon - math.log1p(-1 / order) + math.log(delta * order) / (order - 1)
