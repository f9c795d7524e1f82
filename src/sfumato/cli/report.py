"""sfumato report: write a run's page again, or the version of it that may be published."""

from __future__ import annotations

from dataclasses import dataclass

from sfumato.cli import console
from sfumato.cli.options import Directory


@dataclass(frozen=True, kw_only=True)
class Report:
    """Write the page of a finished run: report.html, or with --public a report-public.html to give away.

    The public page leaves out whatever shows private data or was measured on them.
    """

    run_directory: Directory
    """The run directory."""
    public: bool = False
    """Leave out what shows private data or figures measured on them."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> int:
        """Write and name the file."""
        from sfumato.runs import directory as names
        from sfumato.runs.verdict import altered
        from sfumato.training import finish
        from sfumato.training import public as public_training

        run = names.RunDirectory(self.run_directory)
        run.require_finished()
        path = run / ("report-public.html" if self.public else names.REPORT)
        plain = public_training.is_public(run)
        text = public_training.report(run) if plain else finish.report(run, public=self.public)
        names.write(path, text.encode(), private=not (self.public or plain))
        changed = None if plain else altered(run)
        if changed is not None:
            console.note(f"note: {run / changed} is not as the run left it; see sfumato verify {run.path}")
        if self.json:
            console.as_json({"report": str(path), "public": self.public})
        else:
            console.result(str(path))
            if not (self.public or plain):
                console.note("note: it may show private images and figures; sfumato report --public leaves them out")
        return 0
