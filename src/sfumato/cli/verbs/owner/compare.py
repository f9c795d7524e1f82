"""sfumato compare: shows two runs side by side."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Annotated, Any

from sfumato._checks import SfumatoError
from sfumato.cli.options.run_options import PrintsJson
from sfumato.cli.options.spellings import Path, positional
from sfumato.cli.output import console
from sfumato.cli.output.console import Note, Table

Two = Annotated[tuple[str, str], positional("RUN RUN")]
POINTS = 8
"""Number of points of a curve to print."""


@dataclass(frozen=True, kw_only=True)
class Compare(PrintsJson):
    """Compare two runs. For the owner only, unless the figures were measured on public data."""

    what: Two
    """Two run directories."""

    page: Path = None
    """Write a page with the curves into this .html file."""

    def run(self) -> None:
        """Compare and print."""
        from sfumato.runs import summaries

        if self.page is not None and not self.page.endswith(".html"):
            raise SfumatoError(f"page must end with .html, got {self.page!r}", "give a file such as a.html")
        found = summaries.compare_runs(*self.what)
        if self.page is not None:
            from sfumato._files import write
            from sfumato.report import comparison_page

            write(FilePath(self.page), comparison_page(found.to_dict()).encode(), private=True)
        data = found.to_dict()
        settings = _table("setting", data["settings"], self.what) if data["settings"] else "no setting differs"
        curves = [("", _curve(name, both, self.what)) for name, both in data["curves"].items()]
        private = not all(one.public for one in found.runs)
        console.show(
            data | ({} if self.page is None else {"page": self.page}),
            settings,
            "",
            _table("figure", data["figures"], self.what),
            *(part for parts in curves for part in parts),
            None if self.page is None else Note(f"{self.page}   the comparison with curves"),
            Note("note: figures measured on private data are for the owner only") if private else None,
            json=self.json,
        )


def _table(head: str, rows: list[dict[str, Any]], runs: tuple[str, str]) -> Table:
    """A table with a column for each run."""
    cells = [{name: "-" if value is None else _cell(value) for name, value in row.items()} for row in rows]
    columns = [(head, "{name}"), (runs[0], "{first}"), (runs[1], "{second}")]
    return Table(cells, columns, texts=2)


def _curve(name: str, both: list[list[list[float]]], runs: tuple[str, str]) -> Table:
    """A table of some points of both curves."""
    first, second = (dict(map(tuple, points)) for points in both)  # type: ignore[arg-type]
    steps = sorted({*first, *second})
    shown = sorted({steps[place * (len(steps) - 1) // max(1, POINTS - 1)] for place in range(POINTS)})
    rows = [{"name": f"{step}", "first": first.get(step), "second": second.get(step)} for step in shown]
    return _table(f"{name} after step", rows, runs)


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
