"""sfumato compare: two runs beside each other."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Annotated, Any

from sfumato._checks import SfumatoError
from sfumato.cli.options.choices import PrintsJson
from sfumato.cli.options.spellings import Path, positional
from sfumato.cli.output import console

if TYPE_CHECKING:
    from sfumato.runs.glance import Difference

Two = Annotated[tuple[str, str], positional("RUN RUN")]
POINTS = 8
"""So many points of a curve are printed."""


@dataclass(frozen=True, kw_only=True)
class Compare(PrintsJson):
    """Show two runs beside each other.

    It is for the owner: figures were measured on private data, unless these are public.
    """

    what: Two
    """Two run directories."""

    page: Path = None
    """Write a page with the curves into this .html file."""

    def run(self) -> None:
        """Compare and print."""
        from sfumato.runs import glance

        if self.page is not None and not self.page.endswith(".html"):
            raise SfumatoError(f"page must end with .html, got {self.page!r}", "name a file such as a.html")
        found = glance.compared(*self.what)
        if self.page is not None:
            from sfumato._files import write
            from sfumato.report.runs_compared import page_of_two

            write(FilePath(self.page), page_of_two(found.to_dict()).encode(), private=True)
        if self.json:
            console.as_json(found.to_dict() | ({} if self.page is None else {"page": self.page}))
            return
        show(found)
        if self.page is not None:
            console.note(f"{self.page}   the same, with curves")
        if not all(one.public for one in found.runs):
            console.note("note: figures measured on private data are for the owner")


def show(found: Difference) -> None:
    """Settings, figures and curves as tables."""
    first, second = (one.run for one in found.runs)
    if found.settings:
        console.table(("setting", first, second), [(name, *map(told, both)) for name, *both in found.settings], texts=2)
    else:
        console.result("no setting differs")
    console.result()
    console.table(("figure", first, second), [(name, *map(told, both)) for name, *both in found.figures], texts=2)
    for name, both in found.curves.items():
        steps = sorted({step for points in both for step, _ in points})
        shown = sorted({steps[place * (len(steps) - 1) // max(1, POINTS - 1)] for place in range(POINTS)})
        rows = [(f"{step}", *(told(dict(points).get(step)) for points in both)) for step in shown]
        console.result()
        console.table((f"{name} after step", first, second), rows, texts=2)


def told(value: Any) -> str:
    """A value in a cell.

    >>> told(None), told(0.94712345), told(1e-05), told([1, 2]), told(True), told("sgd")
    ('-', '0.9471', '1e-05', '[1, 2]', 'True', 'sgd')
    """
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
