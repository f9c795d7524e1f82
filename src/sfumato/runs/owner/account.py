"""A budget as it stands: its filter, all totals that it had, and every plan that was reserved within it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sfumato.privacy import PrivacyFilter, PrivacyPlan, PrivateSelection
from sfumato.runs.owner.composition import Use


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """A run's whole plan, as it counts against a budget from before its first step.

    Args:
        date: when, in UTC; lines count in their order, whatever the clock said.
        run: its identity.
        place: its directory, by the last two names of the path.
        use: the plan, or the private selection.
        figures: epsilon of what it publishes of test records; None where it publishes nothing.
        cost: what it takes of the filter's limit.
        materials, users: `Source.materials` and `Source.assignment`: keyed codes of the data.
    """

    date: str
    run: str
    place: str
    use: Use
    figures: float | None
    cost: float
    materials: tuple[str, ...]
    users: str

    @property
    def plan(self) -> PrivacyPlan:
        """What each of its trainings releases."""
        return self.use.plan if isinstance(self.use, PrivateSelection) else self.use

    @property
    def epsilon(self) -> float:
        """Of the run by itself, at the delta of its own plan."""
        return self.use.epsilon()

    def to_dict(self) -> dict[str, Any]:
        """A line of the file."""
        kind = "selection" if isinstance(self.use, PrivateSelection) else "plan"
        return {
            "date": self.date,
            "run": self.run,
            "place": self.place,
            kind: self.use.to_dict(),
            "figures": self.figures,
            "cost": self.cost,
            "materials": list(self.materials),
            "users": self.users,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Reservation:
        """What `to_dict` wrote."""
        left = dict(data)
        if "selection" in left:
            use: Use = PrivateSelection.from_dict(left.pop("selection"))
        else:
            use = PrivacyPlan.from_dict(left.pop("plan"))
        return cls(**{**left, "use": use, "materials": tuple(left["materials"])})


@dataclass(frozen=True, kw_only=True)
class Total:
    """A total that a budget had from some day on."""

    date: str
    epsilon: float


@dataclass(frozen=True, kw_only=True)
class Account:
    """A budget as it stands.

    Args:
        name: of the data set that it is for.
        filter: its total as it is now, and how plans count against it.
        totals: all totals that it had, the first one first.
        reservations: in their order.
        lost: the directories of those whose lines the file has no more, which the list of uses knows.
    """

    name: str
    filter: PrivacyFilter
    totals: tuple[Total, ...]
    reservations: tuple[Reservation, ...] = ()
    lost: tuple[str, ...] = ()

    @property
    def costs(self) -> list[float]:
        """What each reservation takes of the filter's limit."""
        return [one.cost for one in self.reservations]

    @property
    def used(self) -> float:
        """The share of the limit that is reserved, from 0 to 1."""
        return math.fsum(self.costs) / self.filter.limit

    @property
    def left(self) -> float:
        """What is left, in the filter's own measure."""
        return self.filter.limit - math.fsum(self.costs)

    @property
    def epsilon(self) -> float:
        """What the reservations come to at the budget's delta, by its filter."""
        return self.filter.epsilon_of(math.fsum(self.costs))

    def in_advance(self) -> float | None:
        """What the same plans would come to had all of them been planned in advance: the difference is the price of
        choosing them one after the other. None of no run, and where one is a selection or publishes figures."""
        plans = [one.use for one in self.reservations if isinstance(one.use, PrivacyPlan)]
        if not plans or len(plans) < len(self.reservations) or any(one.figures for one in self.reservations):
            return None
        return self.filter.composed(plans)

    def of_run(self, run: str) -> Reservation | None:
        """The reservation of the run with this identity."""
        return next((one for one in self.reservations if one.run == run), None)

    @property
    def words(self) -> str:
        """How it stands, in a line."""
        return (
            f"budget {self.name}: {percent(self.used)} of epsilon {self.filter.epsilon:g} at delta "
            f"{self.filter.delta!r} is used, for each single {self.filter.unit}, by {runs(len(self.reservations))}"
        )


def percent(share: float) -> str:
    """A share, rounded up to a tenth of a percent: nothing is called free that is not.

    >>> percent(0.6201), percent(1.0)
    ('62.1%', '100%')
    """
    return f"{math.ceil(round(share * 1000, 9)) / 10:g}%"


def runs(count: int) -> str:
    """So many of them, in words.

    >>> runs(1), runs(12)
    ('1 run', '12 runs')
    """
    return f"{count} run{'' if count == 1 else 's'}"


def history(account: Account) -> list[dict[str, Any]]:
    """Its lines as plain data, in their order, each with the share that is used after it."""
    rows, costs = [], []
    for one in account.reservations:
        costs.append(one.cost)
        rows.append(
            {
                "date": one.date,
                "run": one.place,
                "epsilon": one.epsilon,
                "delta": one.plan.delta,
                "figures": one.figures,
                "share": one.cost / account.filter.limit,
                "used": math.fsum(costs) / account.filter.limit,
            }
        )
    return rows


def to_dict(account: Account) -> dict[str, Any]:
    """A budget as plain data."""
    return {
        "budget": account.name,
        **account.filter.to_dict(),
        "rule": account.filter.rule,
        "used": account.used,
        "epsilon_used": account.epsilon,
        "epsilon_if_planned_in_advance": account.in_advance(),
        "totals": [asdict(one) for one in account.totals],
        "history": history(account),
    }
