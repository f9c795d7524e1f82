"""sfumato spent: lists the runs that used a data set, and their total privacy cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sfumato.cli.options.choices import SourceChoices, source_spec
from sfumato.cli.options.run_options import PrintsJson
from sfumato.cli.options.spellings import SourceName
from sfumato.cli.output import console
from sfumato.cli.output.console import Note, Table

COLUMNS = {
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

    what: SourceName
    """The source, as it was trained on."""

    def run(self) -> None:
        """Find the uses and print them."""
        from sfumato._checks import SfumatoError
        from sfumato.data import paths
        from sfumato.randomness import owner_key
        from sfumato.runs.owner import sentences, uses
        from sfumato.runs.owner.data_identity import NAMED, DataIdentity, place

        if self.what.startswith(NAMED):
            named = DataIdentity((), (place(self.what.removeprefix(NAMED)),))
            self._show(uses.uses_report(named), [*sentences.disagreements()])
            return
        spec = source_spec(self, self.what)
        try:
            source = spec.open(owner_key())
            data = DataIdentity.from_source(source)
            found = uses.uses_report(data)
            apart = [] if source.public else [*sentences.overlap_notes(uses.earlier_uses(data))]
        except SfumatoError as error:
            found = uses.uses_report(DataIdentity((), tuple(paths.places_of(self.what))))
            if not found["uses"]:
                raise
            apart = [*sentences.disagreements()]
            console.note(f"note: {error}; only runs on data at this path are listed")
        self._show(found, apart)

    def _show(self, found: dict[str, Any], apart: list[str]) -> None:
        from sfumato.runs.owner.budgets import runs_text
        from sfumato.runs.owner.data_identity import BY_NUMBERS

        if found["by_numbers"]:
            apart.append(
                f"note: {runs_text(found['by_numbers'])} of yours used tensors or arrays that are {BY_NUMBERS}"
            )
        console.show({"source": self.what, **found}, *_parts(self.what, found), json=self.json)
        for note in apart if self.json else (*apart, NOT_KNOWN):
            console.note(note)


def _parts(what: str, found: dict[str, Any]) -> Iterator[str | Table]:
    """The uses as a table, and their totals in words."""
    from sfumato.privacy.statements.display import rounded_up
    from sfumato.runs.owner.budgets import runs_text
    from sfumato.runs.owner.sentences import seeded_suffix

    if not found["uses"]:
        yield f"no known run of yours used {what} as private data"
        return
    rows = [
        one
        | {
            "called": one["name"] or one["run"][:12],
            "marks": "; ".join(
                [
                    *(["seeded: no guarantee"] if one["seeded"] else []),
                    *([] if one["figures"] is None else [f"figures of test images at {one['figures']:g}"]),
                    *(f"budget {name}" for name in one["budgets"]),
                ]
            ),
        }
        for one in found["uses"]
    ]
    yield from ("", Table(rows, COLUMNS, texts=4), "")
    for one in found["together"]:
        yield (
            f"for each single {one['unit']}: {runs_text(one['runs'])}, together epsilon {rounded_up(one['epsilon'])} "
            f"at delta {one['delta']!r}, if all were planned in advance{seeded_suffix(one['seeded'])}"
        )
    for name in dict.fromkeys(name for one in found["uses"] for name in one["budgets"]):
        yield Note(f"sfumato budget {name} shows what is left")
