"""A finished run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import nn

from sfumato.privacy import Circumstances, PrivacyPlan, PrivateSelection, Statement
from sfumato.privacy.unit import Adjacency
from sfumato.runs import directory as names
from sfumato.runs.directory import RunDirectory
from sfumato.runs.loaded import Loaded, load


@dataclass(frozen=True, kw_only=True)
class Run:
    """A finished run.

    Args:
        directory: where its files are.
        statement: what it promised.
        accuracy: on the test split; a private figure unless the data are public.
        top5: how often the right class is among the five likeliest there, private likewise; None with five classes or
            fewer.
        seconds: time spent on training in this process.
        steps: how many steps were taken.
        kind: of the source: "digits", "folder", ...
        uses: how many runs of this owner, this one among them, have used the data; 0 for public data.
        together: (epsilon, delta) of all of them by composition; None where this run is the only one.
        adjacency: what `together` holds for, as each of them does.
    """

    directory: Path
    statement: Statement
    accuracy: float
    top5: float | None
    seconds: float
    steps: int = 0
    kind: str = ""
    uses: int = 0
    together: tuple[float, float] | None = None
    adjacency: Adjacency | None = None

    def load(self, model: nn.Module | str | None = None) -> Loaded:
        """The trained model; give the module itself where the run trained an object of your own, or the name of the
        function that built it."""
        return load(self.directory, model=model)


def read(run: RunDirectory) -> Run:
    """A finished run, from its files."""
    run.require_finished()
    written, result = run.read_json(names.STATEMENT), run.read_json(names.EVALUATION)
    plan = PrivacyPlan.from_dict(run.read_json(names.PLAN))
    selection = PrivateSelection.from_dict(written["selection"]) if "selection" in written else None
    return Run(
        directory=run.path,
        statement=Statement(
            plan=plan, circumstances=Circumstances.from_dict(written["circumstances"]), selection=selection
        ),
        accuracy=result["accuracy"],
        top5=result["top5"],
        seconds=0.0,
        steps=written["steps_taken"],
        kind=run.read_json(names.SETTINGS)["data"]["kind"],
    )
