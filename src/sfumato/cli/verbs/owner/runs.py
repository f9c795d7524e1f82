"""sfumato runs: lists the runs below a directory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from sfumato.cli.options.run_options import PrintsJson
from sfumato.cli.options.spellings import positional
from sfumato.cli.output import console
from sfumato.cli.output.console import Note, Table
from sfumato.privacy.statements.curve import rounded_up

if TYPE_CHECKING:
    from sfumato.runs.summaries import RunSummary

Below = Annotated[str, positional("DIR")]

COLUMNS = {
    "run": "{run}",
    "date (UTC)": "{date}",
    "data": "{data}",
    "accuracy": "{value:.1%}{suffix}",
    "epsilon": "{promise}",
    "state": "{state}",
}
SHOWN = 24
"""Number of characters of a source to show."""


def shortened(source: str) -> str:
    """A long source, shortened to its kind and the end of its path. --json shows all of it.

    >>> shortened("folder:/home/someone/projects/lungs/pictures"), shortened("npz:faces.npz")
    ('folder:…s/lungs/pictures', 'npz:faces.npz')
    """
    kind, colon, path = source.partition(":")
    return source if len(source) <= SHOWN else f"{kind}{colon}…{path[-max(1, SHOWN - len(kind) - 2) :]}"


@dataclass(frozen=True, kw_only=True)
class Runs(PrintsJson):
    """List the runs below a directory. For the owner only: accuracies were measured on private data, unless marked
    public.
    """

    what: Below = "runs"
    """Directory to search."""

    def run(self) -> None:
        """Find the runs and print them."""
        from sfumato.runs import summaries

        found = summaries.find_runs(self.what)
        broken = [one for one in found if " (" in one.state]
        private = any(one.value is not None and not one.public for one in found)
        console.show(
            {"runs": [one.to_dict() for one in found]},
            Table(map(_row, found), COLUMNS, texts=3) if found else Note(f"no runs below {self.what}"),
            *(Note(f"note: {one.run} {one.state}") for one in broken),
            Note("note: some of these figures were measured on private data, and are for the owner only")
            if private
            else None,
            json=self.json,
        )


def _row(one: RunSummary) -> dict[str, Any]:
    """A run as a row of the table."""
    figure = "" if one.figure in (None, "accuracy") else f" {one.figure}"
    state = "broken" if " (" in one.state else one.state
    promise = "none" if one.epsilon is None else rounded_up(one.epsilon)
    words = {"data": shortened(one.data), "date": (one.date or "")[:10], "suffix": figure}
    return one.to_dict() | words | {"promise": promise, "state": state}
