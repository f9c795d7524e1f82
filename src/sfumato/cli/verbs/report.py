"""sfumato report: write a run's page again, or the version of it that may be published."""

from __future__ import annotations

from dataclasses import dataclass

from sfumato._checks import SfumatoError
from sfumato.cli.options.choices import OfRun
from sfumato.cli.options.spellings import FreeText
from sfumato.cli.output import console


@dataclass(frozen=True, kw_only=True)
class Report(OfRun):
    """Write the page of a finished run: report.html, or with --public a report-public.html to give away.

    The public page leaves out whatever shows private data or was measured on them. What is written over the page here
    (title, owner, date, purpose) is remembered for the run; only the title stands on the public page.
    """

    public: bool = False
    """Leave out what shows private data or figures measured on them."""
    title: FreeText = None
    """What the page is called."""
    owner: FreeText = None
    """Who answers for the data: on the owner's page alone."""
    date: FreeText = None
    """A day, such as 2026-03-01: on the owner's page alone."""
    purpose: FreeText = None
    """What the model is for: on the owner's page alone."""

    def run(self) -> None:
        """Write and name the file."""
        from sfumato.runs import directory as names
        from sfumato.runs.heading import Heading
        from sfumato.runs.verdict import altered
        from sfumato.training.conclusion import run_page
        from sfumato.training.job import is_public

        heading = Heading(title=self.title, owner=self.owner, date=self.date, purpose=self.purpose)
        if self.public and heading.private:
            raise SfumatoError(
                f"--public and --{next(iter(heading.private))} are both given, which no public page shows",
                "give it without --public first: it is remembered for the owner's page",
            )
        run = names.RunDirectory(self.run_directory)
        run.require_finished()
        heading.add_to(run)
        path = run / ("report-public.html" if self.public else names.REPORT)
        with run.as_written():
            plain, text = is_public(run), run_page.report(run, public=self.public).encode()
            plain_figures = plain and run.read_json(names.STATEMENT).get("test_public", True)
        names.write(path, text, private=not (self.public or plain_figures))
        changed = None if plain else altered(run)
        if changed is not None:
            console.note(f"note: {run / changed} is not as the run left it; see sfumato verify {run.path}")
        if self.json:
            console.as_json({"report": str(path), "public": self.public})
        else:
            console.result(str(path))
            if not (self.public or plain_figures):
                console.note("note: it may show private images and figures; sfumato report --public leaves them out")
