"""What a plan is calibrated to: an epsilon, a mu, or the success that a membership test may have."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from sfumato._checks import SfumatoError, positive, within
from sfumato.privacy.calibration import gaussian_mu
from sfumato.privacy.loss import FINE_GRID
from sfumato.privacy.statements.curve import dominating_gaussian, true_positive_rates

RAREST_ALARM, COMMONEST_ALARM = 1e-6, 0.5
"""The false-positive rates of an attack risk. Below the first, the accountant's rounding decides the bound."""


@dataclass(frozen=True)
class Target(ABC):
    """A bound that a plan has to meet. More noise lowers every plan's cost.

    Args:
        limit: the largest cost that meets the target.
    """

    limit: float

    name: ClassVar[str]
    """The option that gives it."""

    @property
    def value(self) -> float | str:
        """The target as an option's value."""
        return self.limit

    @abstractmethod
    def cost(self, plan: Any, *, accountant: str = "pld", grid: float = FINE_GRID) -> float:
        """What the limit bounds, of this plan. A coarser grid is faster and never underestimates."""

    @abstractmethod
    def mu(self, delta: float) -> float:
        """The mu of the Gaussian release that just meets the target: the search's first guess."""

    def __str__(self) -> str:
        return f"{self.name.replace('_', ' ')} {self.limit:g}"


@dataclass(frozen=True)
class Epsilon(Target):
    """At most this epsilon at the plan's delta."""

    name: ClassVar[str] = "epsilon"

    def __post_init__(self) -> None:
        positive(epsilon=self.limit, remedy="give the privacy budget, a number such as 3")

    def cost(self, plan: Any, *, accountant: str = "pld", grid: float = FINE_GRID) -> float:
        return plan.cost(accountant=accountant, grid=grid)

    def mu(self, delta: float) -> float:
        """The mu of the Gaussian release that is exactly (epsilon, delta)-private."""
        return gaussian_mu(min(max(self.limit, 1e-6), 1e6), delta)  # beyond, dp-accounting finds none, or warns


@dataclass(frozen=True)
class Mu(Target):
    """At most this mu: the plan's trade-off curve lies nowhere below that of a Gaussian release of this mu.

    **Guarantee.** That of `dominating_gaussian`: it holds except for a tenth of the plan's delta, because the far tail
    of a sampled step is not Gaussian, and without exception for Gaussian steps without sampling.
    """

    name: ClassVar[str] = "mu"
    measure: ClassVar[str] = "mu"

    def __post_init__(self) -> None:
        positive(mu=self.limit, remedy="give the mu of Gaussian differential privacy, a number such as 1")

    def cost(self, plan: Any, *, accountant: str = "pld", grid: float = FINE_GRID) -> float:
        """The mu of the plan's statement, before it is rounded up."""
        _require_curve(self, accountant)
        return dominating_gaussian(plan, grid=grid)[0]

    def mu(self, delta: float) -> float:
        return self.limit


@dataclass(frozen=True)
class AttackRisk(Target):
    """At most this share of members found by any membership test that rarely raises a false alarm.

    Args:
        limit: the largest true-positive rate.
        false_alarms: the false-positive rate, between `RAREST_ALARM` and `COMMONEST_ALARM`, and below the limit:
            guessing alone finds as many members.

    **Guarantee.** That of `true_positive_rates`: it holds for adding and for removing the unit, whatever else the
    attacker knows.

    >>> AttackRisk.parse("0.01@0.001")
    AttackRisk(limit=0.01, false_alarms=0.001)
    """

    false_alarms: float
    name: ClassVar[str] = "attack_risk"
    measure: ClassVar[str] = "true_positive_rate"

    def __post_init__(self) -> None:
        remedy = "give a rate such as 0.001, one false alarm in a thousand"
        what = "the false-positive rate of attack_risk"
        within(RAREST_ALARM, COMMONEST_ALARM, optional=False, remedy=remedy, **{what: self.false_alarms})
        if not self.false_alarms < self.limit < 1:
            raise SfumatoError(
                f"the true-positive rate of attack_risk must lie between its false-positive rate and 1, got "
                f"{self.limit:g} at {self.false_alarms:g}",
                f"give a rate such as {min(10 * self.false_alarms, 0.9):g}: guessing alone finds {self.false_alarms:g}",
            )

    @classmethod
    def parse(cls, text: str) -> AttackRisk:
        """The target spelt as TPR@FPR."""
        try:
            detections, alarms = map(float, text.split("@"))
        except (AttributeError, ValueError):
            raise SfumatoError(
                f"attack_risk must be a true-positive rate at a false-positive rate, got {text!r}",
                "write it as 0.01@0.001: at most 1% of members found at one false alarm in a thousand",
            ) from None
        return cls(detections, alarms)

    @property
    def value(self) -> str:
        return f"{self.limit!r}@{self.false_alarms!r}"

    def __str__(self) -> str:
        return f"attack risk {self.value}"

    def cost(self, plan: Any, *, accountant: str = "pld", grid: float = FINE_GRID) -> float:
        _require_curve(self, accountant)
        return true_positive_rates(plan, [self.false_alarms], grid=grid)[0]

    def mu(self, delta: float) -> float:
        """The mu of the Gaussian release whose trade-off curve passes through the two rates."""
        from scipy.special import ndtri

        return float(ndtri(self.limit) - ndtri(self.false_alarms))


def _require_curve(target: Target, accountant: str) -> None:
    """Refuse an accountant that gives no trade-off curve."""
    if accountant != "pld":
        raise SfumatoError(
            f"{target} is given with accountant {accountant!r}, but it is a point of the trade-off curve, which only "
            "privacy loss distributions give",
            "leave accountant out, or give epsilon",
        )


def target_figures(plan: Any, target: Target | None) -> dict[str, Any]:
    """The target and what holds for the plan, as plain data; empty for an epsilon, which `remarks.costs` shows."""
    return {"target": str(target), target.measure: target.cost(plan)} if isinstance(target, Mu | AttackRisk) else {}


def target_of(epsilon: float | None = None, mu: float | None = None, attack_risk: str | None = None) -> Target | None:
    """The one target among these; None if none is given. Refuses several."""
    given = {name: value for name, value in vars().items() if value is not None}
    if len(given) > 1:
        listed = " and ".join(f"`{name}={value}`" for name, value in given.items())
        raise SfumatoError(
            f"{listed} are {'both' if len(given) == 2 else 'all'} given, but a plan is calibrated to one of them",
            "give one; the statement shows what it comes to in the others",
        )
    if attack_risk is not None:
        return AttackRisk.parse(attack_risk)
    return Epsilon(epsilon) if epsilon is not None else None if mu is None else Mu(mu)
