"""Joint costs of runs, and privacy budgets: one total for all of an owner's runs on a named data set.

A run reserves its whole plan before its first step, or it does not start. Reservations are never released.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from sfumato._checks import SfumatoError
from sfumato.privacy import PrivacyFilter, PrivacyPlan, PrivateChoice
from sfumato.privacy.filter import joint_loss
from sfumato.privacy.statements.display import rounded_up
from sfumato.privacy.unit import Adjacency
from sfumato.runs.owner import store
from sfumato.runs.owner.lines import BudgetSet, DataUse, check_name, same_people
from sfumato.runs.owner.store import History


@dataclass(frozen=True, kw_only=True)
class Account:
    """The state of a budget.

    Args:
        name: the name of the data set.
        totals: every total that was set, oldest first.
        reservations: the runs whose plans count against it, oldest first.
    """

    name: str
    totals: tuple[BudgetSet, ...]
    reservations: tuple[DataUse, ...] = ()

    @property
    def filter(self) -> PrivacyFilter:
        """The current total, and the rule by which plans count against it."""
        return self.totals[-1].filter

    @property
    def costs(self) -> list[float]:
        """The part of the filter's limit that each reservation takes."""
        return [one.cost for one in self.reservations]

    @property
    def used(self) -> float:
        """The reserved share of the limit, from 0 to 1."""
        return math.fsum(self.costs) / self.filter.limit

    @property
    def left(self) -> float:
        """The remainder of the limit, in the filter's own measure."""
        return self.filter.limit - math.fsum(self.costs)

    @property
    def epsilon(self) -> float:
        """Epsilon of all reservations at the budget's delta, by its filter."""
        return self.filter.epsilon_of(math.fsum(self.costs))

    @property
    def total(self) -> float:
        """What the runs so far cost together: `epsilon`, or the plan's own epsilon if there is one run."""
        alone = self.epsilon_in_advance() if len(self.reservations) == 1 else None
        return self.epsilon if alone is None else alone

    def epsilon_in_advance(self) -> float | None:
        """Epsilon of the same plans had all of them been fixed in advance. The difference is the price of choosing them
        one after the other. None if there is no run, or if one of them publishes figures."""
        plans = [one.use for one in self.reservations if isinstance(one.use, PrivacyPlan)]
        if not plans or len(plans) < len(self.reservations) or any(one.figures for one in self.reservations):
            return None
        return self.filter.composed_epsilon(plans)

    @property
    def description(self) -> str:
        """The state of the budget in one line."""
        return (
            f"budget {self.name}: {percent(self.used)} of epsilon {self.filter.epsilon:g} at delta "
            f"{self.filter.delta!r} is used, for each single {self.filter.unit}, by {runs_text(len(self.reservations))}"
        )

    def history(self) -> list[dict[str, Any]]:
        """The reservations as plain data, oldest first, each with the share that is used after it."""
        return [
            {
                "date": one.date,
                "run": one.name,
                "epsilon": one.epsilon,
                "delta": one.delta,
                "figures": one.figures,
                "share": one.cost / self.filter.limit,
                "used": math.fsum(self.costs[:number]) / self.filter.limit,
            }
            for number, one in enumerate(self.reservations, start=1)
        ]

    def to_dict(self) -> dict[str, Any]:
        """The account as plain data."""
        return {
            "budget": self.name,
            **self.filter.to_dict(),
            "rule": self.filter.rule,
            "used": self.used,
            "epsilon_used": self.total,
            "epsilon_if_planned_in_advance": self.epsilon_in_advance(),
            "totals": [{"date": one.date, "epsilon": one.epsilon} for one in self.totals],
            "history": self.history(),
        }


def percent(share: float) -> str:
    """A share as a percentage, rounded up to a tenth of a percent so that a small cost never shows as 0%.

    >>> percent(0.6201), percent(1.0)
    ('62.1%', '100%')
    """
    return f"{math.ceil(round(share * 1000, 9)) / 10:g}%"


def runs_text(count: int) -> str:
    """A number of runs in words.

    >>> runs_text(1), runs_text(12)
    ('1 run', '12 runs')
    """
    return f"{count} run{'' if count == 1 else 's'}"


def names(history: History | None = None) -> list[str]:
    """The names of all budgets, sorted; without `history` the owner's list is read now."""
    return sorted({one.name for one in (history or store.read()).of(BudgetSet)})


def read_budget(name: str, history: History | None = None) -> Account:
    """The state of a budget on the owner's list; without `history` it is read now.

    Errors: `SfumatoError` if there is no budget of this name, if the owner's list cannot be read, or if the list has
    lost a line since the budget was set, since the remainder is then unknown.
    """
    return _account(check_name("budget", name), history or store.read())


def set_budget(name: str, *, epsilon: float, delta: float | None = None, **fixed: Any) -> Account:
    """Set a budget for a named data set, or change the total of an existing budget.

    Args:
        name: the name of the data set: letters, digits, "_", "-" and ".". The owner decides which records the name
            stands for; it is not checked against the data.
        epsilon: the total.
        delta: the delta of the total. It cannot be changed later.
        fixed: `unit` and `adjacency` of `PrivacyFilter`. They cannot be changed later.

    **Guarantee.** All runs under the budget together stay within the total: see `PrivacyFilter`. If the total is
    changed later, the guarantee is about the new total, at the same order. No filter covers the choice to raise a total
    in view of results; the history shows each total with its date.

    Errors: `SfumatoError` for a total below what is spent, and for a fixed value that differs from the first one.
    """
    fixed = {key: value for key, value in fixed.items() if value is not None}
    check_name("budget", name)
    with store.locked() as held:
        if not _lines(name, held):
            if delta is None:
                raise SfumatoError(f"the budget {name} needs a delta", "give one well below 1/N, such as 1e-5")
            total = PrivacyFilter.for_total(epsilon=epsilon, delta=delta, **fixed)
            held.append(BudgetSet(name=name, filter=total, lost=held.lost))
        else:
            before = _account(name, held)
            _refuse_other(before, {"delta": delta, **fixed})
            changed = replace(before.filter, epsilon=epsilon)
            if not changed.fits(before.costs):
                raise SfumatoError(
                    f"epsilon {epsilon:g} is below what was spent: {runs_text(len(before.reservations))} under {name} "
                    f"{'comes' if len(before.reservations) == 1 else 'come'} to {rounded_up(before.epsilon)}",
                    f"give at least {rounded_up(before.epsilon)}: what was released cannot be taken back",
                )
            if epsilon != before.filter.epsilon:
                held.append(BudgetSet(name=name, filter=changed, lost=held.lost))
        return _account(name, held)


def _refuse_other(account: Account, given: Mapping[str, Any]) -> None:
    """Refuse values that differ from those fixed when the budget was set."""
    for name, value in given.items():
        before = getattr(account.filter, name)
        if value is not None and value != before:
            raise SfumatoError(
                f"{name} of the budget {account.name} was fixed when it was set, to {before!r}; got {value!r}",
                "leave it out, or set a budget of another name",
            )


def _lines(name: str, history: History) -> list[BudgetSet]:
    return [one for one in history.of(BudgetSet) if one.name == name]


def _account(name: str, history: History) -> Account:
    """The account that the list's lines add up to."""
    lines = _lines(name, history)
    if not lines:
        others = names(history)
        known = f"; there {'is' if len(others) == 1 else 'are'} {', '.join(others)}" if others else ""
        raise SfumatoError(
            f"there is no budget {name}{known}", f"set it first (sfumato budget {name} --epsilon 8 --delta 1e-5)"
        )
    if history.lost > lines[0].lost:
        raise SfumatoError(
            f"the list of runs {history.home / store.FILE} has lost lines since the budget {name} was set, so its "
            "remainder is unknown",
            "restore the list and its count from a copy, or set a budget of another name",
        )
    reserved = dict[str, DataUse]()
    for one in history.of(DataUse):
        if one.budget == name:
            reserved.setdefault(one.run, one)
    return Account(name=name, totals=tuple(lines), reservations=tuple(reserved.values()))


def reservation(held: History, coming: DataUse) -> DataUse:
    """The line that reserves a run's whole plan: `coming` with its cost.

    A run that already has a reservation counts once, however often it resumes.

    Errors: `SfumatoError` for a plan that exceeds the remainder, for one of another unit or adjacency, and for records
    that were assigned to other users before.
    """
    assert coming.budget is not None
    assert not isinstance(coming.use, PrivateChoice), "a choice is under no budget"
    account = _account(coming.budget, held)
    own, name = account.filter, account.name
    before = next((one for one in account.reservations if one.run == coming.run), None)
    if before is not None:
        same_plan = (before.use, before.figures) == (coming.use, coming.figures)
        if not (same_plan and same_people(before.users, coming.users) and set(before.data) & set(coming.data)):
            other = "other records or other users" if same_plan else "another plan"
            raise SfumatoError(
                f"the run {coming.name} was reserved in the budget {name} with {other}",
                "give its original data, or another `directory`",
            )
        return replace(coming, cost=before.cost)
    cost = own.cost(coming.use, coming.figures)
    for one in account.reservations:
        if own.unit == "user" and set(one.data) & set(coming.data) and not same_people(one.users, coming.users):
            raise SfumatoError(
                f"the budget {name} was used on these records with another assignment to users, whose losses it cannot "
                "add up",
                "declare the users as before: each total is for a person who has the same records in every run",
            )
    if not own.fits([*account.costs, cost]):
        raise SfumatoError(*_over_budget(account, coming, cost))
    return replace(coming, cost=cost)


def refuse_seeded(name: str | None, seed: int | None) -> None:
    """Refuse a seeded run under a budget: it has no guarantee, and a budget adds up guarantees."""
    if name is not None and seed is not None:
        raise SfumatoError(
            f"`seed` is {seed}, but a seeded run has no guarantee, so it cannot count in the budget {name}",
            "leave out the seed or the budget",
        )


def refuse_over_budget(name: str, many: Sequence[PrivacyPlan]) -> None:
    """Refuse several plans that do not all fit into the remainder. Reserves nothing."""
    account = read_budget(name)
    costs = [account.filter.cost(use) for use in many]
    if not account.filter.fits([*account.costs, *costs]):
        raise SfumatoError(
            f"the budget {name} has {percent(1 - account.used)} left, and {runs_text(len(many))} need "
            f"{percent(math.fsum(costs) / account.filter.limit)}",
            "give fewer runs, or a smaller epsilon",
        )


def _over_budget(account: Account, coming: DataUse, cost: float) -> tuple[str, str]:
    """(problem, remedy) for a plan that does not fit."""
    own, costs = account.filter, math.fsum([*account.costs, cost])
    problem = (
        f"the budget {account.name} has epsilon {own.epsilon:g} at delta {own.delta!r}, of which "
        f"{runs_text(len(account.reservations))} took {percent(account.used)}; this one needs "
        f"{percent(cost / own.limit)} and would bring it to epsilon {rounded_up(own.epsilon_of(costs))}"
    )
    if coming.figures is not None and own.cost_of_pure(coming.figures) > account.left:
        return problem, "publish no figures (`report_epsilon`), or at a smaller epsilon"
    less = own.with_enough_noise(coming.use, account.left) if isinstance(coming.use, PrivacyPlan) else None
    if less is None:
        return problem, "train on other data, or set a larger total, which the budget's history shows"
    return problem, (
        f"plan for at most epsilon {math.floor(less.epsilon() * 1000) / 1000:g} (noise multiplier "
        f"{math.ceil(less.noise_multiplier * 1e4) / 1e4:g} at the same steps)"
    )


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

    The convolution of many different sampled plans would take long. For them epsilon is the smaller of two bounds:
    Renyi DP, and the sum of each plan's epsilon at an equal share of delta.
    """
    delta, loss = max(plan.delta for plan in many), joint_loss(many)
    if len(loss.parts) <= CONVOLVED:
        return loss.epsilon(delta), delta
    share = delta / len(loss.parts)
    apart = math.fsum(replace(loss, parts=(part,)).epsilon(share) for part in loss.parts)
    return (min(apart, loss.epsilon(delta, accountant="rdp")) if "rdp" in loss.accountants else apart), delta


def adjacency_of(many: Sequence[PrivacyPlan]) -> Adjacency:
    """The adjacency for which `joint_cost` holds: the one that all uses share, or zero-out if they differ."""
    found: set[Adjacency] = {plan.adjacency for plan in many}
    return found.pop() if len(found) == 1 else "zero-out"
