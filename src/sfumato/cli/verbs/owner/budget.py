"""sfumato budget: one total for all runs on a data set."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Annotated

from sfumato._checks import SfumatoError
from sfumato.cli.options.run_options import PrintsJson
from sfumato.cli.options.spellings import Number, Path, Spelling, positional
from sfumato.cli.output import console
from sfumato.cli.output.console import Note, Table

if TYPE_CHECKING:
    from sfumato.privacy import PrivacyPlan
    from sfumato.runs.owner.budgets import Account

COLUMNS = (
    ("", "{number}"),
    ("date (UTC)", "{date}"),
    ("run", "{run}"),
    ("epsilon", "{epsilon:up}"),
    ("delta", "{delta!r}"),
    ("share", "{share}"),
    ("used", "{used}"),
    ("", "figures at {figures:g}"),
)
Named = Annotated[str | None, positional("NAME|SOURCE")]


@dataclass(frozen=True, kw_only=True)
class Budget(PrintsJson):
    """Set a privacy budget for all runs on a data set, or show its use.

    A run with --budget NAME reserves its whole plan before its first step, and does not start if the plan exceeds the
    budget. For instance: sfumato budget faces --epsilon 8 --delta 1e-5. Without a name, all budgets are listed.
    """

    what: Named = None
    """Name of the budget, or a source, as in sfumato spent, for the budgets that count its runs. (default: list all
    budgets)"""

    epsilon: Number = None
    """Total that all runs together may cost, at least what is already spent. Sets or changes the budget. (default: show
    the budget)"""
    delta: Number = None
    """Probability with which that bound may fail. Fixed once the budget is set, like all options below."""
    unit: Annotated[str | None, Spelling("example|user")] = None
    """What the total covers: each single record (example), or each person (user). (default: example)"""
    adjacency: Annotated[str | None, Spelling("add-or-remove|zero-out")] = None
    """Adjacency of the total. zero-out counts plans of both kinds. (default: add-or-remove)"""
    accounting: Annotated[str | None, Spelling("renyi|gaussian|planned")] = None
    """How plans add up: renyi (one Renyi order) or gaussian (mu^2), where a plan may depend on earlier results; or
    planned, a fixed list of --plans. (default: renyi)"""
    plans: tuple[str, ...] = ()
    """For planned accounting: one file per run, its plan.json or the output of train --dry-run --json."""
    plot: Path = None
    """Draw what the runs have used into this .svg file."""

    def run(self) -> None:
        """Set or show a budget."""
        from sfumato.runs.owner import budgets

        setting = {name: getattr(self, name) for name in ("epsilon", "delta", "unit", "adjacency", "accounting")}
        given = [name for name, value in (*setting.items(), ("plans", self.plans)) if value not in (None, ())]
        if self.what is None:
            if given or self.plot:
                raise SfumatoError(f"--{(given or ['plot'])[0]} is given without a budget's name", "name the budget")
            self.list_all()
            return
        if ":" in self.what:
            if given or self.plot:
                raise SfumatoError(f"{self.what} is a source and no budget's name", "give a name, such as faces")
            self.list_all(self.what)
            return
        if given and self.epsilon is None:
            raise SfumatoError(f"--{given[0]} is given without --epsilon", "give --epsilon to set the budget")
        if self.plot is not None and not self.plot.endswith(".svg"):
            raise SfumatoError(f"plot must end with .svg, got {self.plot!r}", "give a file such as a.svg")
        if self.epsilon is None:
            found = budgets.read_budget(self.what)
        else:
            plans = tuple(map(read_plan, self.plans))
            found = budgets.set_budget(self.what, **setting, plans=plans)
        if self.plot is not None:
            from sfumato._files import write
            from sfumato.report.plots.comparisons import spending

            write(FilePath(self.plot), spending(found.history(), total_text(found)).encode())
        plot = None if self.plot is None else Note(f"{self.plot}   the use of the budget")
        console.show(found.to_dict(), *_parts(found), plot, json=self.json)

    def list_all(self, source: str | None = None) -> None:
        """Print all budgets, one line each, or those that count runs on this source."""
        from sfumato.cli.verbs.owner.spent import uses_of
        from sfumato.data import SourceSpec
        from sfumato.runs.owner import budgets

        rows = [] if source is None else uses_of(SourceSpec(spec=source), self)[0]["uses"]
        counting = dict.fromkeys(name for one in rows for name in one["budgets"])
        found = [budgets.read_budget(name) for name in (budgets.names() if source is None else counting)]
        none = "no budgets yet; sfumato budget NAME --epsilon 8 --delta 1e-5 sets one"
        none = Note(none if source is None else f"no budget counts a run on {source}; --budget NAME counts one")
        data = {"budgets": [one.to_dict() for one in found]}
        console.show(data, *(one.description for one in found), None if found else none, json=self.json)


def read_plan(path: str) -> PrivacyPlan:
    """The plan in a file, which is a plan.json or the output of a dry run."""
    from sfumato._files import read_json
    from sfumato.privacy import PrivacyPlan

    data = read_json(path, f"--plans {path}", "give a run's plan.json, or the output of sfumato train --dry-run --json")
    return PrivacyPlan.from_dict(data.get("privacy_plan", data) if isinstance(data, dict) else data)


def total_text(account: Account) -> str:
    """The total in words."""
    return f"epsilon {account.filter.epsilon:g} at delta {account.filter.delta!r}"


def _parts(account: Account) -> Iterator[str | Table]:
    """A budget and its history."""
    from sfumato.privacy.statements.curve import rounded_up
    from sfumato.runs.owner.budgets import percent
    from sfumato.runs.owner.sentences import disagreements

    own = account.filter
    yield from map(Note, disagreements())
    yield account.description
    yield f"adjacency {own.adjacency}; plans add up by {own.rule}"
    for before, after in zip(account.totals, account.totals[1:], strict=False):
        yield f"{after.date}  total changed from epsilon {before.epsilon:g} to {after.epsilon:g}"
    if not account.reservations:
        yield Note(f"no runs yet; sfumato train SOURCE --budget {account.name} reserves its plan in it")
        return
    rows = [
        row | {"number": number, "share": percent(row["share"]), "used": percent(row["used"])}
        for number, row in enumerate(account.history(), start=1)
    ]
    yield from ("", Table(rows, COLUMNS, texts=3), "")
    planned = account.epsilon_in_advance()
    if planned is not None and len(rows) == 1:
        yield f"so far epsilon {rounded_up(account.total)}, that of its plan alone"
    elif planned is not None and own.accounting != "planned":
        yield (
            f"together epsilon {rounded_up(account.epsilon)} by this rule; planned in advance, the same runs would "
            f"cost {rounded_up(planned)}. The difference is the price of choosing each run after seeing earlier "
            "results."
        )
    if len(account.totals) > 1:
        yield Note(
            "note: the guarantee is for the present total; no theorem covers changing the total after seeing results"
        )
