"""A finished run, and its summary in a notebook."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from sfumato._cards import card
from sfumato.privacy import Statement
from sfumato.privacy.statements.display import rounded_up
from sfumato.privacy.unit import Adjacency
from sfumato.report import NoisyFigures
from sfumato.runs import directory as names
from sfumato.runs import published
from sfumato.runs.directory import RunDirectory
from sfumato.runs.loaded import Loaded, load
from sfumato.runs.owner.budgets import JointCost


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The figures measured on the test part.

    Args:
        figures: the figures by name; private unless the data are public.
    """

    figures: Mapping[str, Any] = field(repr=False)

    @property
    def accuracy(self) -> float:
        """The share of the test part that a classifier labels correctly; for several labels, the share of correct
        decisions."""
        return self.figures["accuracy"]

    @property
    def top5(self) -> float | None:
        """The share of records whose class is among the five likeliest; None with five classes or fewer."""
        return self.figures["top5"]

    @property
    def main_figures(self) -> list[tuple[str, str]]:
        """(name, value) of the main figures, as text."""
        if "recall" in self.figures:
            return [(f"recall at a false accept rate of {self.figures['far']:g}", f"{self.figures['recall']:.1%}")]
        if "labels" in self.figures:
            area, exact = self.figures["mean_auc"], self.figures["exact_match"][0]
            areas = [] if area is None else [("mean area under ROC", f"{area:.3f}")]
            return [("accuracy of labels", f"{self.accuracy:.1%}"), *areas, ("exact match", f"{exact:.1%}")]
        return [("test accuracy", f"{self.accuracy:.1%}")]


@dataclass(frozen=True, kw_only=True)
class Run(Measured):
    """A finished run.

    Args:
        directory: the run directory.
        statement: the privacy statement.
        seconds: the time spent on training in this process.
        steps: the number of steps taken.
        kind: the kind of the source: "digits", "folder", ...
        uses: the number of this owner's runs on the data, including this one; 0 for public data.
        seeded: the number of seeded runs among them. Their plans count, although they promise nothing.
        joint_cost: (epsilon, delta) of all of them with the same unit, by composition; None if this is the only run.
        publishing: for each of the uses with the same unit that publishes figures, epsilon for each test image or user.
        other_units: the joint cost of runs with another unit, which does not add up with `together`.
        adjacency: the adjacency for which `together` holds.
        costs: the same in sentences; None if the owner's list was not read.
    """

    directory: Path
    statement: Statement
    seconds: float
    steps: int = 0
    kind: str = ""
    uses: int = 0
    seeded: int = 0
    joint_cost: tuple[float, float] | None = None
    adjacency: Adjacency | None = None
    other_units: tuple[JointCost, ...] = ()
    publishing: tuple[float, ...] = ()
    costs: tuple[str, ...] | None = None

    def __repr__(self) -> str:
        measured = "".join(f"{name} {value}, " for name, value in self.main_figures if self.is_public)
        return f"Run({str(self.directory)!r}: {measured}{self.statement.short})"

    def _repr_html_(self) -> str:
        epsilon = "epsilon" if self.statement.promises else "epsilon of its plan, without a guarantee"
        figures = [*self.main_figures, (epsilon, rounded_up(self.statement.epsilon))]
        figures += [("delta", repr(self.statement.plan.delta)), ("steps", f"{self.steps:,}")]
        return card(str(self.directory), figures, self.statement.sentence, "" if self.is_public else PRIVATE)

    @property
    def is_public(self) -> bool:
        """Whether the measured figures may be shown to others."""
        return self.statement.circumstances.test_public

    @property
    def published(self) -> NoisyFigures | None:
        """The published figures, from noisy counts; None if there are none."""
        return published.read(RunDirectory(self.directory))

    def load(self, model: nn.Module | str | None = None) -> Loaded:
        """The trained model. If the run trained a module of your own, pass that module, or the name of the function
        that built it."""
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
"""The warning for figures that no promise covers."""
