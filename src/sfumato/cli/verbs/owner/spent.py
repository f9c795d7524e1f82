"""sfumato spent: lists the runs that used a data set, and their total privacy cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sfumato._checks import SfumatoError
from sfumato.cli.options.choices import SourceChoices, source_spec
from sfumato.cli.options.run_options import PrintsJson
from sfumato.cli.options.spellings import SourceName
from sfumato.cli.output import console
from sfumato.cli.output.console import Note, Table

if TYPE_CHECKING:
    from sfumato.data import SourceSpec

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
        from sfumato.runs.owner.budgets import runs_text
        from sfumato.runs.owner.lines import BY_NUMBERS

        found, apart = uses_of(source_spec(self, self.what), self)
        if found["by_numbers"]:
            apart.append(
                f"note: {runs_text(found['by_numbers'])} of yours used tensors or arrays that are {BY_NUMBERS}"
            )
        console.show({"source": self.what, **found}, *_parts(self.what, found), json=self.json)
        for note in apart if self.json else (*apart, NOT_KNOWN):
            console.note(note)


def uses_of(spec: SourceSpec, verb: object) -> tuple[dict[str, Any], list[str]]:
    """The uses of a source (`uses_report`), and notes for the owner. Data that cannot be opened are known by path."""
    from sfumato.cli.output.refusals import with_option_names
    from sfumato.data import paths
    from sfumato.randomness import owner_key
    from sfumato.runs.owner import sentences, uses
    from sfumato.runs.owner.lines import NAMED, DataIdentity, place

    if spec.spec.startswith(NAMED):
        named = DataIdentity((), (place(spec.spec.removeprefix(NAMED)),))
        return uses.uses_report(named), [*sentences.disagreements()]
    try:
        source = spec.open(owner_key())
        data = DataIdentity.from_source(source)
        return uses.uses_report(data), [] if source.public else [*sentences.overlap_notes(uses.earlier_uses(data))]
    except SfumatoError as error:
        found = uses.uses_report(DataIdentity((), tuple(paths.places_of(spec.spec))))
        if not found["uses"]:
            raise
        why = with_option_names(f"{error.problem}; {error.remedy}", verb)
        console.note(f"note: {why}; only runs on data at this path are listed")
        return found, [*sentences.disagreements()]


def _parts(what: str, found: dict[str, Any]) -> Iterator[str | Table]:
    """The uses as a table, and their totals in words."""
    from sfumato.privacy.statements.curve import rounded_up
    from sfumato.runs.owner.budgets import runs_text
    from sfumato.runs.owner.sentences import other_assignments, seeded_suffix

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
            f"for each single {one['unit']}: {runs_text(one['runs'])}, {'together ' * (one['runs'] > 1)}epsilon "
            f"{rounded_up(one['epsilon'])} at delta {one['delta']!r}"
            f"{', if all were planned in advance' * (one['runs'] > 1)}{seeded_suffix(one['seeded'])}"
        )
    if found["other_assignments"]:
        yield Note(f"note: {other_assignments(found['other_assignments'], 'of these')}")
    for name in dict.fromkeys(name for one in found["uses"] for name in one["budgets"]):
        yield Note(f"sfumato budget {name} shows what is left")
