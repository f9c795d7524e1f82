"""sfumato runs: what there is below a directory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from sfumato.cli.options.choices import PrintsJson
from sfumato.cli.options.spellings import positional
from sfumato.cli.output import console

Below = Annotated[str, positional("DIR")]

SHOWN = 24
"""So many characters of a source are shown."""


def shortened(source: str) -> str:
    """A source by its kind and the end of its path, where it is long: --json has all of it.

    >>> shortened("folder:/home/someone/projects/lungs/pictures"), shortened("npz:faces.npz")
    ('folder:…s/lungs/pictures', 'npz:faces.npz')
    """
    kind, colon, path = source.partition(":")
    return source if len(source) <= SHOWN else f"{kind}{colon}…{path[-max(1, SHOWN - len(kind) - 2) :]}"


@dataclass(frozen=True, kw_only=True)
class Runs(PrintsJson):
    """List the runs below a directory.

    The list is for the owner: accuracies were measured on private data, where it does not say public.
    """

    what: Below = "runs"
    """Directory to search."""

    def run(self) -> None:
        """Look and print."""
        from sfumato.privacy.statements.presented import rounded_up
        from sfumato.runs import glance

        found = glance.below(self.what)
        if self.json:
            console.as_json({"runs": [one.to_dict() for one in found]})
            return
        if not found:
            console.note(f"there is no run below {self.what}")
            return
        rows = [
            (
                one.run,
                (one.date or "")[:10],
                shortened(one.data),
                "" if one.value is None else f"{one.value:.1%}{'' if one.figure == 'accuracy' else f' {one.figure}'}",
                "none" if one.epsilon is None else rounded_up(one.epsilon),
                "broken" if " (" in one.state else one.state,
            )
            for one in found
        ]
        console.table(("run", "date (UTC)", "data", "accuracy", "epsilon", "state"), rows, texts=3)
        for one in found:
            if " (" in one.state:
                console.note(f"note: {one.run} {one.state}")
        if any(one.value is not None and not one.public for one in found):
            console.note("note: some of these figures were measured on private data, and are for the owner")
