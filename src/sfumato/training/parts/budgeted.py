"""The owner's budget, in which a run's whole plan is reserved."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sfumato._checks import SfumatoError
from sfumato.data import Source
from sfumato.privacy import PrivacyPlan
from sfumato.runs.owner import budgets
from sfumato.training.parts.part import EarlyFacts, Part, RunRequest


@dataclass(frozen=True, kw_only=True)
class Budgeted(Part):
    """The budget of a named data set.

    Args:
        name: the budget's name.
        figures: epsilon of the run's published figures of the test split; None for none.
    """

    options = ("budget",)
    name: str
    figures: float | None = None

    @classmethod
    def check(cls, early: EarlyFacts) -> None:
        """Refuse an unknown budget, and one for public data."""
        check(early.options.get("budget"), public=early.spec.is_public)

    @classmethod
    def from_request(cls, request: RunRequest) -> Budgeted | None:
        """The requested budget."""
        known = {"seed": request.settings.seed, "figures": request.options.get("report_epsilon")}
        return budget_part(request.options.get("budget"), request.source, request.plan, **known)

    @classmethod
    def recorded_options(cls, record: Mapping[str, Any], path: str) -> dict[str, Any]:
        """The budget of the run."""
        return budget_option(record)

    @property
    def pins(self) -> dict[str, dict[str, Any]]:
        """The budget's name."""
        return {"budget": {"name": self.name}}


def budget_part(
    name: str | None, source: Source, plan: PrivacyPlan, *, seed: int | None, figures: float | None = None
) -> Budgeted | None:
    """The part of a run with this budget; None without one. Refuses plans that the budget cannot account for."""
    check(name, public=source.public, seed=seed)
    if name is None:
        return None
    budgets.cost_of(budgets.read_budget(name), plan, figures)
    return Budgeted(name=name, figures=figures)


def check(name: str | None, *, public: bool, seed: int | None = None) -> None:
    """Refuse an unknown budget, one for public data, and one for a seeded run."""
    if name is None:
        return
    budgets.refuse_seeded(name, seed)
    if public:
        raise SfumatoError(f"`budget` is {name}, but the data are public and cost nothing", "leave it out")
    budgets.read_budget(name)


def budget_option(record: Mapping[str, Any]) -> dict[str, str]:
    """The option of a run, from its settings.json."""
    return {"budget": record["budget"]["name"]} if "budget" in record else {}


def lines(record: Mapping[str, Any], *, public: bool = False) -> list[str]:
    """The present state of the run's budget. For the owner, since it tells of other runs.

    Args:
        public: leave out names of other runs and of files.
    """
    if (name := budget_option(record).get("budget")) is None:
        return []
    try:
        account = budgets.read_budget(name)
    except SfumatoError as error:
        return [f"The state of the budget {name} is not known{'' if public else f': {error.problem}'}."]
    changes = [
        f"Its total was changed from epsilon {before.epsilon:g} to {after.epsilon:g} on {after.date[:10]}; no theorem "
        "covers a total that is changed in response to results."
        for before, after in itertools.pairwise(account.totals)
    ]
    return [f"B{account.description[1:]}; plans add up by {account.filter.rule}.", *changes]
