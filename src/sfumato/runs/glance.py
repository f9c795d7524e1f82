"""Runs at a glance: what a directory holds, and how two runs differ. Figures here are for the owner's eyes."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sfumato._checks import SfumatoError
from sfumato.models.weights.about import OWN_LOOP
from sfumato.privacy import PrivacyPlan
from sfumato.runs import directory as names
from sfumato.runs.directory import RunDirectory

HEADLINES = ("accuracy", "recall")
"""Figures of an evaluation of which a run has one."""


@dataclass(frozen=True, kw_only=True)
class Glance:
    """A run in a line.

    Args:
        run: its directory.
        state: "finished", "unfinished", or why it cannot be read.
        data: the source as it was asked for, or its kind.
        date: when it ended, or began where it has not; UTC, by its files.
        epsilon: of its statement, or of its plan where it has not ended; None where nothing is promised.
        delta: likewise.
        figure: "accuracy" or "recall", which `value` is; None where nothing was measured.
        value: of the test part.
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


def below(directory: str | os.PathLike[str]) -> list[Glance]:
    """All runs in a directory and below it, by their paths; a run that cannot be read says so, and stops nobody.

    Errors: `SfumatoError` where there is no such directory.
    """
    root = Path(directory)
    if not root.is_dir():
        raise SfumatoError(f"{root} is no directory", "name one with runs below it, such as that of --output")
    found = []
    for path, folders, files in os.walk(root):
        folders.sort()
        if names.SETTINGS in files:
            found.append(glance(Path(path)))
            if found[-1].state in ("finished", "unfinished"):
                folders[:] = [name for name in folders if name not in ("kept", "tensorboard")]
    return found


def glance(path: Path) -> Glance:
    """One run in a line."""
    run = RunDirectory(path)
    try:
        record = run.read_json(names.SETTINGS)
        finished = run.finished
        promise = run.read_json(names.STATEMENT) if (run / names.STATEMENT).is_file() else _planned(run)
        figures = run.read_json(names.EVALUATION) if (run / names.EVALUATION).is_file() else {}
        name = next((one for one in HEADLINES if isinstance(figures.get(one), float)), None)
        written = (run / (names.DONE if finished else names.SETTINGS)).stat().st_mtime
        return Glance(
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
        return Glance(run=str(path), state=f"cannot be read ({error})")


def _planned(run: RunDirectory) -> dict[str, Any]:
    """What an unfinished run is about to promise."""
    if not (run / names.PLAN).is_file() or run.read_json(names.SETTINGS)["circumstances"]["seeded"]:
        return {}
    plan = PrivacyPlan.from_dict(run.read_json(names.PLAN))
    return {"epsilon": plan.epsilon(), "delta": plan.delta}


def _is_public(promise: Mapping[str, Any]) -> bool:
    """Whether what was measured may be shown: as the statement says, or since all data were public."""
    facts = promise.get("circumstances", promise)
    return bool(facts.get("test_public", "published" in promise))


def _data(record: Mapping[str, Any]) -> str:
    """The source as it was asked for, or its kind."""
    spec = record.get("request", {}).get("source", {}).get("spec")
    if spec is not None:
        return spec
    return "a loop of one's own" if record.get("kind") == OWN_LOOP else record.get("data", {}).get("kind", "")


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Two runs beside each other.

    Args:
        runs: both in a line.
        settings: (name, first, second) of what differs; None where one of them has no such setting.
        figures: (name, first, second) of all that was measured or promised.
        curves: by figure the points (step, value) of both.
    """

    runs: tuple[Glance, Glance]
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


def compared(first: str | os.PathLike[str], second: str | os.PathLike[str]) -> Difference:
    """How two runs differ, finished or not.

    Errors: `SfumatoError` for what is no run, or cannot be read.
    """
    both = [RunDirectory(first), RunDirectory(second)]
    for run in both:
        run.require()
    seen = tuple(glance(run.path) for run in both)
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
        settings=tuple(row for row in _beside(*settings) if row[1] != row[2]),
        figures=tuple(_beside(*({**one, **more} for one, more in zip(promised, measured, strict=True)))),
        curves=curves,
    )


def _beside(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Values of both by name, in the order in which they come."""
    return [(name, first.get(name), second.get(name)) for name in dict.fromkeys([*first, *second])]


def _settings(run: RunDirectory) -> dict[str, Any]:
    """What was set, flat: the model's settings, the plan, the data and how it was computed."""
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
    """The numbers of its evaluation, those of several parts left out."""
    if not (run / names.EVALUATION).is_file():
        return {}
    return {name: value for name, value in run.read_json(names.EVALUATION).items() if _number(value)}


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
