"""sfumato federation: puts the statements of a federation's sites side by side."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Annotated

from sfumato._checks import SfumatoError
from sfumato.cli.options.run_options import PrintsJson
from sfumato.cli.options.spellings import Path, positional
from sfumato.cli.output import console
from sfumato.cli.output.console import Note, Table

Runs = Annotated[tuple[str, ...], positional("RUN RUN ...")]
COLUMNS = {
    "site": "{run}",
    "(epsilon, delta)": "{promise}",
    "unit": "{unit}",
    "rounds": "{left}",
    "verify": "{verification}",
}


@dataclass(frozen=True, kw_only=True)
class Federation(PrintsJson):
    """Put the statements of a federation's sites on one page.

    Verifies the run of each site, and says what holds for the patients of all sites and which site left when. Exit
    status 0 if every run verifies, otherwise 1.
    """

    what: Runs
    """The sites' run directories, or copies of their plan.json, ledger.jsonl, statement.json and model.safetensors."""
    overlap: bool = False
    """One person may be at several sites: state the composition of all sites."""
    page: Path = None
    """Write a page into this .html file."""

    def run(self) -> int:
        """Read the runs and print what they promise."""
        from sfumato.runs.federation import read_federation
        from sfumato.runs.verdict import LIMITS

        if self.page is not None and not self.page.endswith(".html"):
            raise SfumatoError(f"page must end with .html, got {self.page!r}", "give a file such as a.html")
        found = read_federation(self.what, overlap=self.overlap)
        data = found.to_dict()
        if self.page is not None:
            from sfumato._files import write
            from sfumato.report import federation_page

            write(FilePath(self.page), federation_page(data, LIMITS.format(settings="")).encode(), private=True)
        console.show(
            data | ({} if self.page is None else {"page": self.page}),
            Table(data["sites"], COLUMNS, texts=4),
            "",
            *data["sentences"],
            *(
                Note(f"{one['verification']}  {one['run']}: {one['verdict']}")
                for one in data["sites"]
                if not one["holds"]
            ),
            None if self.page is None else Note(f"{self.page}   the page"),
            json=self.json,
        )
        return 0 if found.holds else 1
