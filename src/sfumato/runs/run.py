"""A finished run, and what a notebook shows of one: what its page says first, in a few lines of HTML."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from sfumato._cards import card
from sfumato.privacy import Statement
from sfumato.privacy.statements.presented import rounded_up
from sfumato.privacy.unit import Adjacency
from sfumato.runs import directory as names
from sfumato.runs.directory import RunDirectory
from sfumato.runs.figures import published
from sfumato.runs.figures.noisy_figures import NoisyFigures
from sfumato.runs.loaded import Loaded, load
from sfumato.runs.owner.composition import Together


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What was measured on the test split.

    Args:
        figures: how well it does, by name; private unless the data are public.
    """

    figures: Mapping[str, Any] = field(repr=False)

    @property
    def accuracy(self) -> float:
        """The share of the test split that a classifier names rightly; of several labels the share of right
        decisions."""
        return self.figures["accuracy"]

    @property
    def top5(self) -> float | None:
        """How often the right class is among the five likeliest; None with five classes or fewer."""
        return self.figures["top5"]

    @property
    def measured(self) -> list[tuple[str, str]]:
        """What was measured and its value, in words: of a classifier or of an embedding."""
        if "recall" in self.figures:
            return [(f"recall at a false accept rate of {self.figures['far']:g}", f"{self.figures['recall']:.1%}")]
        if "labels" in self.figures:
            area, exact = self.figures["mean_auc"], self.figures["exact_match"][0]
            areas = [] if area is None else [("mean area under ROC", f"{area:.3f}")]
            return [("right decisions", f"{self.accuracy:.1%}"), *areas, ("exact match", f"{exact:.1%}")]
        return [("test accuracy", f"{self.accuracy:.1%}")]


@dataclass(frozen=True, kw_only=True)
class Run(Measured):
    """A finished run.

    Args:
        directory: where its files are.
        statement: what it promised.
        seconds: time spent on training in this process.
        steps: how many steps were taken.
        kind: of the source: "digits", "folder", ...
        uses: how many runs of this owner, this one among them, have used the data; 0 for public data.
        seeded: how many of them are by a seed: their plans count, and they promise nothing.
        together: (epsilon, delta) by composition of all of them that promise for the same unit; None where this run is
            the only one.
        publishing: what the figures that these runs publish cost each test image, for each that publishes some.
        other_units: what those with another unit come to, which does not add up with it.
        adjacency: what `together` holds for, as each of them does.
    """

    directory: Path
    statement: Statement
    seconds: float
    steps: int = 0
    kind: str = ""
    uses: int = 0
    seeded: int = 0
    together: tuple[float, float] | None = None
    adjacency: Adjacency | None = None
    other_units: tuple[Together, ...] = ()
    publishing: tuple[float, ...] = ()

    def __repr__(self) -> str:
        measured = "".join(f"{name} {value}, " for name, value in self.measured if self.open)
        return f"Run({str(self.directory)!r}: {measured}{self.statement.short})"

    def _repr_html_(self) -> str:
        epsilon = "epsilon" if self.statement.promises else "epsilon of its plan, which it does not promise"
        figures = [*self.measured, (epsilon, rounded_up(self.statement.epsilon))]
        figures += [("delta", repr(self.statement.plan.delta)), ("steps", f"{self.steps:,}")]
        return card(str(self.directory), figures, self.statement.sentence, "" if self.open else PRIVATE)

    @property
    def open(self) -> bool:
        """Whether what was measured may be shown to others."""
        return self.statement.circumstances.test_public

    @property
    def published(self) -> NoisyFigures | None:
        """The figures that may be published, from noisy counts; None where none were asked for."""
        return published.read(RunDirectory(self.directory))

    def load(self, model: nn.Module | str | None = None) -> Loaded:
        """The trained model; give the module itself where the run trained an object of your own, or the name of the
        function that built it."""
        return load(self.directory, model=model)


def read(run: RunDirectory) -> Run:
    """A finished run, from its files."""
    run.require_finished()
    written = run.read_json(names.STATEMENT)
    return Run(
        directory=run.path,
        statement=Statement.from_dict(written),
        figures=run.read_json(names.EVALUATION),
        seconds=0.0,
        steps=written["steps_taken"],
        kind=run.read_json(names.SETTINGS)["data"]["kind"],
    )


PRIVATE = "Measured on private data: keep it to yourself, and clear this output before the notebook is shown to others."
"""What is said beside a figure that no promise covers."""
