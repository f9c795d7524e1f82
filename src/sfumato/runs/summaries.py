"""Summaries of the runs in a directory. The figures here are for the owner alone."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sfumato._checks import SfumatoError
from sfumato.models.description import OWN_LOOP
from sfumato.privacy import PrivacyPlan
from sfumato.runs import directory as names
from sfumato.runs.directory import RunDirectory

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
        epsilon: of the statement, or of the plan if the run is unfinished; None if nothing is promised.
        delta: likewise.
        figure: the name of `value`, "accuracy" or "recall"; None if nothing was measured.
        value: the figure on the test part.
        public: whether the figure may be shown to others.
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
        promise = run.read_json(names.STATEMENT) if (run / names.STATEMENT).is_file() else _planned_budget(run)
        figures = run.read_json(names.EVALUATION) if (run / names.EVALUATION).is_file() else {}
        name = next((one for one in HEADLINES if isinstance(figures.get(one), float)), None)
        written = (run / (names.DONE if finished else names.SETTINGS)).stat().st_mtime
        return RunSummary(
            run=str(path),
            state="finished" if finished else "unfinished",
            data=_data(record),
            date=datetime.fromtimestamp(written, UTC).isoformat(timespec="seconds"),
            epsilon=promise.get("epsilon"),
            delta=promise.get("delta"),
            figure=name,
            value=None if name is None else figures[name],
            public=_is_public(promise),
        )
    except (SfumatoError, OSError, AttributeError, KeyError, TypeError, ValueError) as error:
        return RunSummary(run=str(path), state=f"cannot be read ({error})")


def _planned_budget(run: RunDirectory) -> dict[str, Any]:
    """Epsilon and delta of an unfinished run's plan; empty if it will promise nothing."""
    if not (run / names.PLAN).is_file() or run.read_json(names.SETTINGS)["circumstances"]["seeded"]:
        return {}
    plan = PrivacyPlan.from_dict(run.read_json(names.PLAN))
    return {"epsilon": plan.epsilon(), "delta": plan.delta}


def _is_public(promise: Mapping[str, Any]) -> bool:
    """Whether the measured figures may be shown: by the statement, or because all data were public."""
    facts = promise.get("circumstances", promise)
    return bool(facts.get("test_public", "published" in promise))


def _data(record: Mapping[str, Any]) -> str:
    """The requested source, or its kind."""
    spec = record.get("request", {}).get("source", {}).get("spec")
    if spec is not None:
        return spec
    return "a custom loop" if record.get("kind") == OWN_LOOP else record.get("data", {}).get("kind", "")
