"""Summaries of the runs in a directory, and the differences of two runs. The figures here are for the owner alone."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sfumato._checks import SfumatoError
from sfumato.models.weights.description import OWN_LOOP
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


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A comparison of two runs.

    Args:
        runs: the summaries of both.
        settings: (name, first, second) of each setting that differs; None if a run has no such setting.
        figures: (name, first, second) of each figure that was measured or promised.
        curves: by figure, the points (step, value) of both.
    """

    runs: tuple[RunSummary, RunSummary]
    settings: tuple[tuple[str, Any, Any], ...]
    figures: tuple[tuple[str, float | None, float | None], ...]
    curves: Mapping[str, tuple[list[tuple[int, float]], list[tuple[int, float]]]]

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "runs": [one.to_dict() for one in self.runs],
            "settings": [dict(zip(("name", "first", "second"), one, strict=True)) for one in self.settings],
            "figures": [dict(zip(("name", "first", "second"), one, strict=True)) for one in self.figures],
            "curves": {name: [[list(point) for point in one] for one in both] for name, both in self.curves.items()},
        }


def compare_runs(first: str | os.PathLike[str], second: str | os.PathLike[str]) -> Difference:
    """How two runs differ, finished or not.

    Errors: `SfumatoError` for a path without a readable run.
    """
    both = [RunDirectory(first), RunDirectory(second)]
    for run in both:
        run.require()
    seen = tuple(read_summary(run.path) for run in both)
    for one in seen:
        if one.state not in ("finished", "unfinished"):
            raise SfumatoError(f"{one.run} {one.state}", "restore it from a copy")
    settings, measured, rows = zip(*((_settings(run), _figures(run), run.rows()) for run in both), strict=True)
    curves = {}
    for name in (*HEADLINES, "loss"):
        pair = tuple([(row["step"], row[name]) for row in one if _number(row.get(name))] for one in rows)
        if any(pair):
            curves[name] = pair
    promised = [{"epsilon": one.epsilon, "delta": one.delta} for one in seen]
    return Difference(
        runs=(seen[0], seen[1]),
        settings=tuple(row for row in _with_other_files(*settings) if row[1] != row[2]),
        figures=tuple(_with_other_files(*({**one, **more} for one, more in zip(promised, measured, strict=True)))),
        curves=curves,
    )


def _with_other_files(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """(name, first, second) for each name, in the order of appearance."""
    return [(name, first.get(name), second.get(name)) for name in dict.fromkeys([*first, *second])]


def _settings(run: RunDirectory) -> dict[str, Any]:
    """All settings, flattened: the model's settings, the plan, the data, and the performance settings."""
    record = run.read_json(names.SETTINGS)
    parts = {
        "": record.get("settings", {}),
        "performance.": record.get("performance", {}),
        "data: ": {"": _data(record)},
    }
    if (run / names.PLAN).is_file():
        parts["plan."] = run.read_json(names.PLAN)
    flat: dict[str, Any] = {}
    for head, part in parts.items():
        _flatten(head, part, flat)
    return flat


def _flatten(head: str, part: Any, into: dict[str, Any]) -> None:
    if isinstance(part, Mapping):
        for name, value in part.items():
            _flatten(f"{head}{name}." if isinstance(value, Mapping) else f"{head}{name}", value, into)
    else:
        into[head.rstrip(": ")] = part


def _figures(run: RunDirectory) -> dict[str, float]:
    """The plain numbers of the run's evaluation."""
    if not (run / names.EVALUATION).is_file():
        return {}
    return {name: value for name, value in run.read_json(names.EVALUATION).items() if _number(value)}


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
