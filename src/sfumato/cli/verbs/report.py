"""sfumato report: writes the report of a run, its public version, or another document about it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sfumato._checks import SfumatoError
from sfumato.cli.options.run_options import RunArgument
from sfumato.cli.output import console
from sfumato.cli.output.console import Note
from sfumato.cli.parser import option, refuse_given

if TYPE_CHECKING:
    from sfumato.runs.directory import RunDirectory


@dataclass(frozen=True, kw_only=True)
class Report(RunArgument):
    """Write the report of a finished run: report.html, or with --public a report-public.html for publication.

    The public report leaves out everything that shows private data or was measured on them. Facts given here (title,
    owner, date, purpose and so on) are remembered for the run. The public report shows the title, and of the others
    those that were given together with --public.
    """

    model_card: bool = False
    """Write README.md instead: a model card for Hugging Face, to publish with the model."""
    dpia: bool = False
    """Write dpia.md and dpia.html instead: what a data protection officer needs, for the owner only."""
    registry: bool = False
    """Write registry-entry.yaml instead: an entry for the Differential Privacy Deployments Registry."""
    set: tuple[str, ...] = option("FIELD=VALUE [FIELD=VALUE ...]", default=())
    """With --registry: the owner's facts by the registry's names, such as data_curator_type=Industry."""

    public: bool = False
    """Leave out everything that shows private data or was measured on them."""
    title: str | None = option("TEXT")
    """Title of the report. (default: that of sfumato train)"""
    owner: str | None = option("TEXT")
    """Who is responsible for the data. With --public in both reports, like the next four."""
    contact: str | None = option("TEXT")
    """How to reach them."""
    date: str | None = option("TEXT")
    """A day, such as 2026-03-01."""
    purpose: str | None = option("TEXT")
    """What the model is for."""
    about_data: str | None = option("TEXT")
    """What the data are, such as "chest X-rays of 2019, one per patient"."""
    total: bool = False
    """With --public: state the total of all your runs on these data, which links them."""

    def run(self) -> None:
        """Write the file and print its path."""
        from sfumato.runs import directory as names
        from sfumato.runs.directory import Heading
        from sfumato.runs.verdict import altered_file
        from sfumato.training.job import is_public

        documents = ("public", "model_card", "dpia", "registry")
        options = [f"--{name.replace('_', '-')}" for name in documents if getattr(self, name)]
        if len(options) > 1:
            raise SfumatoError(f"{' and '.join(options)} are both given", "write one document at a time")
        heads = {field.name: getattr(self, field.name) for field in fields(Heading) if field.name != "published"}
        heading = Heading(**heads)
        if self.model_card or self.registry:
            remedy = f"give it without {options[0]} first; the owner's report remembers it"
            refuse_given("is shown by reports only", remedy, **heading.private)
        if not self.registry:
            refuse_given("is for --registry", set=self.set)
        if not self.public:
            refuse_given("is for --public; the owner's report has the total", total=self.total)
        else:
            heading = replace(heading, published=tuple(heading.private))
        run = names.RunDirectory(self.run_directory)
        run.require_finished()
        heading.add_to(run)
        with run.format_errors():
            plain = is_public(run)
            path, text, open_to_all = self._render(run, plain)
            content = text.encode()
        names.write(path, content, private=not open_to_all)
        if self.dpia:
            from sfumato.report.document import html_of

            names.write(path.with_suffix(".html"), html_of(text).encode(), private=True)
        changed = None if plain else altered_file(run)
        if changed is not None:
            console.note(f"note: {run / changed} has changed since the run; see sfumato verify {run.path}")
        note = None if open_to_all else "it may show private images and figures; --public leaves them out"
        note = "for the owner only; fill in the marked places" if self.dpia else note
        data = {
            "report": str(path),
            **({"html": str(path.with_suffix(".html"))} if self.dpia else {}),
            "public": self.public or self.model_card or self.registry,
        }
        console.show(data, str(path), note and Note(f"note: {note}"), json=self.json)

    def _render(self, run: RunDirectory, plain: bool) -> tuple[Path, str, bool]:
        """The path and the text of the document, and whether anybody may read it."""
        from sfumato.runs import directory as names
        from sfumato.training.conclusion import finish, registry, run_report

        if self.registry:
            return run / registry.ENTRY, registry.entry_of(run, self.set), True
        if self.model_card:
            return run / finish.CARD, finish.card_of(run), True
        if self.dpia:
            return run / finish.ASSESSMENT, finish.assessment_of(run), False
        if self.public:
            return run / "report-public.html", run_report.report(run, public=True, total=self.total), True
        open_to_all = plain and run.read_json(names.STATEMENT).get("test_public", True)
        return run / names.REPORT, run_report.report(run), open_to_all
