"""A finished run, and the summaries of the runs in a directory. The figures here are for the owner alone."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from torch import nn

from sfumato._cards import card
from sfumato._checks import SfumatoError
from sfumato.models.description import OWN_LOOP
from sfumato.privacy import PrivacyPlan, Statement
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
        seeded: the number of seeded runs among them. Their plans count, although they have no guarantee.
        joint_cost: (epsilon, delta) of all of them with the same unit, by composition; None if this is the only run.
        publishing: for each of the uses with the same unit that publishes figures, epsilon for each test image or user.
        other_units: the joint cost of runs with another unit, which does not add up with `joint_cost`.
        adjacency: the adjacency for which `joint_cost` holds.
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
"""The warning for figures that no guarantee covers."""


HEADLINES = ("accuracy", "recall")
"""The main figures of evaluations. Each run has one of them."""


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """A one-line summary of a run.

    Args:
        run: the run directory.
        state: "finished", "unfinished", or why it cannot be read.
        data: the requested source, or its kind.
        date: when the run ended, or began if it is unfinished; in UTC, from the dates of its files.
        epsilon: of the statement, or of the plan if the run is unfinished; None if there is no guarantee.
        delta: likewise.
        figure: the name of `value`, "accuracy" or "recall"; None if nothing was measured.
        value: the figure on the test part.
        public: whether the figure may be shown to others: by the statement, or because all data were public.
    """

    run: str
    state: str
    data: str = ""
    date: str | None = None
    epsilon: float | None = None
    delta: float | None = None
    figure: str | None = None
    value: float | None = None
    public: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def find_runs(directory: str | os.PathLike[str]) -> list[RunSummary]:
    """All runs in a directory and below it, sorted by path. An unreadable run is listed with the reason.

    Errors: `SfumatoError` if there is no such directory.
    """
    root = Path(directory)
    if not root.is_dir():
        raise SfumatoError(f"{root} is not a directory", "name one with runs below it, such as that of --output")
    found = []
    for path, folders, files in os.walk(root):
        folders.sort()
        if names.SETTINGS in files:
            found.append(read_summary(Path(path)))
            if found[-1].state in ("finished", "unfinished"):
                folders[:] = [name for name in folders if name not in ("kept", "tensorboard")]
    return found


def read_summary(path: Path) -> RunSummary:
    """The summary of one run."""
    run = RunDirectory(path)
    try:
        record = run.read_json(names.SETTINGS)
        finished = run.finished
        stated = run.read_json(names.STATEMENT) if (run / names.STATEMENT).is_file() else _planned_budget(run)
        figures = run.read_json(names.EVALUATION) if (run / names.EVALUATION).is_file() else {}
        name = next((one for one in HEADLINES if isinstance(figures.get(one), float)), None)
        written = (run / (names.DONE if finished else names.SETTINGS)).stat().st_mtime
        return RunSummary(
            run=str(path),
            state="finished" if finished else "unfinished",
            data=_data(record),
            date=datetime.fromtimestamp(written, UTC).isoformat(timespec="seconds"),
            epsilon=stated.get("epsilon"),
            delta=stated.get("delta"),
            figure=name,
            value=None if name is None else figures[name],
            public=bool(stated.get("circumstances", stated).get("test_public", "published" in stated)),
        )
    except (SfumatoError, OSError, AttributeError, KeyError, TypeError, ValueError) as error:
        return RunSummary(run=str(path), state=f"cannot be read ({error})")


def _planned_budget(run: RunDirectory) -> dict[str, Any]:
    """Epsilon and delta of an unfinished run's plan; empty if it will have no guarantee."""
    if not (run / names.PLAN).is_file() or run.read_json(names.SETTINGS)["circumstances"]["seeded"]:
        return {}
    plan = PrivacyPlan.from_dict(run.read_json(names.PLAN))
    return {"epsilon": plan.epsilon(), "delta": plan.delta}


def _data(record: Mapping[str, Any]) -> str:
    """The requested source, or its kind."""
    spec = record.get("request", {}).get("source", {}).get("spec")
    if spec is not None:
        return spec
    return "a custom loop" if record.get("kind") == OWN_LOOP else record.get("data", {}).get("kind", "")
