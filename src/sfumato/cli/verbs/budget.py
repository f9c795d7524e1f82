"""sfumato budget, spent and runs: what the owner's runs on a data set cost, and the runs below a directory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sfumato._checks import SfumatoError
from sfumato.cli.options.choices import SourceChoices, source_spec
from sfumato.cli.options.run_options import PrintsJson
from sfumato.cli.output import console
from sfumato.cli.output.console import Note, Table
from sfumato.cli.parser import argument, option, refuse_given
from sfumato.privacy.statements.display import rounded_up

if TYPE_CHECKING:
    from sfumato.data import SourceSpec
    from sfumato.runs.owner.budgets import Account
    from sfumato.runs.run import RunSummary

_OF_RESERVATION = (
    ("", "{number}"),
    ("date (UTC)", "{date}"),
    ("run", "{run}"),
    ("epsilon", "{epsilon:up}"),
    ("delta", "{delta!r}"),
    ("share", "{share}"),
    ("used", "{used}"),
    ("", "figures at {figures:g}"),
)


@dataclass(frozen=True, kw_only=True)
class Budget(PrintsJson):
    """Set a privacy budget for all runs on a data set, or show its use.

    A run with --budget NAME reserves its whole plan before its first step, and does not start if the plan exceeds the
    budget. For instance: sfumato budget faces --epsilon 8 --delta 1e-5. Without a name, all budgets are listed.
    """

    what: str | None = argument("NAME", None)
    """Name of the budget. (default: list all budgets)"""

    epsilon: float | None = None
    """Total that all runs together may cost, at least what is already spent. Sets or changes the budget. (default: show
    the budget)"""
    delta: float | None = None
    """Probability with which that bound may fail. Fixed once the budget is set, like all options below."""
    unit: str | None = option("example|user")
    """What the total covers: each single record (example), or each person (user). (default: example)"""
    adjacency: str | None = option("add-or-remove|zero-out")
    """Adjacency of the total. zero-out counts plans of both kinds. (default: add-or-remove)"""

    def run(self) -> None:
        """Set or show a budget."""
        from sfumato.runs.owner import budgets

        setting = {name: getattr(self, name) for name in ("epsilon", "delta", "unit", "adjacency")}
        if self.what is None:
            refuse_given("needs a budget's name", "give a name, such as faces", **setting)
            accounts = [budgets.read_budget(name) for name in budgets.names()]
            none = None if accounts else Note("no budgets yet; sfumato budget NAME --epsilon 8 --delta 1e-5 sets one")
            data = {"budgets": [account.to_dict() for account in accounts]}
            console.show(data, *(account.description for account in accounts), none, json=self.json)
            return
        if self.epsilon is None:
            refuse_given("sets a budget, but --epsilon is not given", "give --epsilon too", **setting)
        account = budgets.read_budget(self.what) if self.epsilon is None else budgets.set_budget(self.what, **setting)
        console.show(account.to_dict(), *_parts_of_account(account), json=self.json)


def _parts_of_account(account: Account) -> Iterator[str | Table]:
    """A budget and its history."""
    from sfumato.runs.owner.budgets import percent
    from sfumato.runs.owner.uses import disagreement_notes

    total = account.filter
    yield from map(Note, disagreement_notes())
    yield account.description
    yield f"adjacency {total.adjacency}; plans add up by {total.rule}"
    for before, after in zip(account.totals, account.totals[1:], strict=False):
        yield f"{after.date}  total changed from epsilon {before.epsilon:g} to {after.epsilon:g}"
    if not account.reservations:
        yield Note(f"no runs yet; sfumato train SOURCE --budget {account.name} reserves its plan in it")
        return
    rows = [
        row | {"number": number, "share": percent(row["share"]), "used": percent(row["used"])}
        for number, row in enumerate(account.history(), start=1)
    ]
    yield from ("", Table(rows, _OF_RESERVATION, texts=3), "")
    planned = account.epsilon_in_advance()
    if planned is not None and len(rows) == 1:
        yield f"so far epsilon {rounded_up(account.total)}, that of its plan alone"
    elif planned is not None:
        yield (
            f"together epsilon {rounded_up(account.epsilon)} by this rule; planned in advance, the same runs would "
            f"cost {rounded_up(planned)}. The difference is the price of choosing each run after seeing earlier "
            "results."
        )
    if len(account.totals) > 1:
        yield Note(
            "note: the guarantee is for the present total; no theorem covers changing the total after seeing results"
        )


_OF_USE = {
    "date (UTC)": "{date}",
    "run": "{called}",
    "kind": "{kind}",
    "unit": "{unit}",
    "epsilon": "{epsilon:up}",
    "delta": "{delta!r}",
    "": "{marks}",
}
NOT_KNOWN = (
    "note: a set that was both moved and changed, even by one image, counts as another one. Not listed: runs by other "
    "users, on other machines, and programs that do not record their use"
)


@dataclass(frozen=True, kw_only=True)
class Spent(PrintsJson, SourceChoices):
    """List the runs on a data set, with date, unit and epsilon. For instance: sfumato spent folder:pictures.

    The data are read, and recognised wherever they were read from, and at any size. Data that are missing or have
    changed are recognised by their path alone. For data that a custom training loop named, give name:NAME.
    """

    what: str = argument("SOURCE")
    """The source, as it was trained on."""

    def run(self) -> None:
        """Find the uses and print them."""
        from sfumato.runs.owner.budgets import runs_text
        from sfumato.runs.owner.lines import BY_NUMBERS

        report, apart = uses_of(source_spec(self, self.what), self)
        if report["by_numbers"]:
            apart.append(
                f"note: {runs_text(report['by_numbers'])} of yours used tensors or arrays that are {BY_NUMBERS}"
            )
        console.show({"source": self.what, **report}, *_parts_of_uses(self.what, report), json=self.json)
        for note in apart if self.json else (*apart, NOT_KNOWN):
            console.note(note)


def uses_of(spec: SourceSpec, verb: object) -> tuple[dict[str, Any], list[str]]:
    """The uses of a source (`uses_report`), and notes for the owner. Data that cannot be opened are known by path."""
    from sfumato.cli.running import with_option_names
    from sfumato.data import paths
    from sfumato.randomness import owner_key
    from sfumato.runs.owner import uses
    from sfumato.runs.owner.lines import NAMED, DataIdentity, place

    if spec.spec.startswith(NAMED):
        named = DataIdentity((), (place(spec.spec.removeprefix(NAMED)),))
        return uses.uses_report(named), [*uses.disagreement_notes()]
    try:
        source = spec.open(owner_key())
        data = DataIdentity.from_source(source)
        return uses.uses_report(data), [] if source.public else [*uses.overlap_notes(uses.earlier_uses(data))]
    except SfumatoError as error:
        report = uses.uses_report(DataIdentity((), tuple(paths.places_of(spec.spec))))
        if not report["uses"]:
            raise
        why = with_option_names(f"{error.problem}; {error.remedy}", verb)
        console.note(f"note: {why}; only runs on data at this path are listed")
        return report, [*uses.disagreement_notes()]


def _parts_of_uses(source: str, report: dict[str, Any]) -> Iterator[str | Table]:
    """The uses as a table, and their totals in words."""
    from sfumato.runs.owner.budgets import runs_text
    from sfumato.runs.owner.uses import other_assignments, seeded_suffix

    if not report["uses"]:
        yield f"no known run of yours used {source} as private data"
        return
    rows = [
        use
        | {
            "called": use["name"] or use["run"][:12],
            "marks": "; ".join(
                [
                    *(["seeded: no guarantee"] if use["seeded"] else []),
                    *([] if use["figures"] is None else [f"figures of test images at {use['figures']:g}"]),
                    *(f"budget {name}" for name in use["budgets"]),
                ]
            ),
        }
        for use in report["uses"]
    ]
    yield from ("", Table(rows, _OF_USE, texts=4), "")
    for use in report["together"]:
        yield (
            f"for each single {use['unit']}: {runs_text(use['runs'])}, {'together ' * (use['runs'] > 1)}epsilon "
            f"{rounded_up(use['epsilon'])} at delta {use['delta']!r}"
            f"{', if all were planned in advance' * (use['runs'] > 1)}{seeded_suffix(use['seeded'])}"
        )
    if report["other_assignments"]:
        yield Note(f"note: {other_assignments(report['other_assignments'], 'of these')}")
    for name in dict.fromkeys(name for use in report["uses"] for name in use["budgets"]):
        yield Note(f"sfumato budget {name} shows what is left")


_OF_RUN = {
    "run": "{run}",
    "date (UTC)": "{date}",
    "data": "{data}",
    "accuracy": "{value:.1%}{suffix}",
    "epsilon": "{stated}",
    "state": "{state}",
}
SHOWN = 24
"""Number of characters of a source to show, from its end. --json shows all of it."""


@dataclass(frozen=True, kw_only=True)
class Runs(PrintsJson):
    """List the runs below a directory. For the owner only: accuracies were measured on private data, unless marked
    public.
    """

    what: str = argument("DIR", "runs")
    """Directory to search."""

    def run(self) -> None:
        """Find the runs and print them."""
        from sfumato.runs.run import find_runs

        runs = find_runs(self.what)
        broken = [run for run in runs if " (" in run.state]
        private = any(run.value is not None and not run.public for run in runs)
        console.show(
            {"runs": [run.to_dict() for run in runs]},
            Table(map(_row, runs), _OF_RUN, texts=3) if runs else Note(f"no runs below {self.what}"),
            *(Note(f"note: {run.run} {run.state}") for run in broken),
            Note("note: some of these figures were measured on private data, and are for the owner only")
            if private
            else None,
            json=self.json,
        )


def _row(run: RunSummary) -> dict[str, Any]:
    """A run as a row of the table."""
    figure = "" if run.figure in (None, "accuracy") else f" {run.figure}"
    state = "broken" if " (" in run.state else run.state
    epsilon = "none" if run.epsilon is None else rounded_up(run.epsilon)
    data = run.data if len(run.data) <= SHOWN else f"…{run.data[1 - SHOWN :]}"
    words = {"data": data, "date": (run.date or "")[:10], "suffix": figure}
    return run.to_dict() | words | {"stated": epsilon, "state": state}
