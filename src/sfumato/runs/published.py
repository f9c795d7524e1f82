"""The published figures of a run: noisy counts of its test part, bound by the ledger's last lines."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sfumato._checks import SfumatoError
from sfumato._files import write
from sfumato.privacy import Entry, NoisyTable
from sfumato.report import NoisyFigures
from sfumato.runs.directory import FIGURES, RunDirectory

ENTRY = "figures"
"""The kind of the ledger's line that records the release, and the key of the file's hash in its last line."""


def body(table: NoisyTable, step: int) -> dict[str, Any]:
    """The body of the ledger's line about the release: the table and the step."""
    return {"step": step, "table": table.to_dict()}


def find_body(entries: Sequence[Entry]) -> Mapping[str, Any] | None:
    """The body of a ledger's line about the release; None if there is none."""
    return next((entry.body for entry in entries if entry.kind == ENTRY), None)


def save(run: RunDirectory, figures: NoisyFigures) -> None:
    """Write the counts atomically. They may be published."""
    data = {"table": figures.table.to_dict(), "classes": list(figures.classes), "counts": figures.counts.tolist()}
    write(run / FIGURES, json.dumps(data).encode() + b"\n")


def read(run: RunDirectory) -> NoisyFigures | None:
    """The figures of a run, from its noisy counts; None if it published none."""
    if not (run / FIGURES).is_file():
        return None
    data = run.read_json(FIGURES)
    try:
        table, classes = NoisyTable.from_dict(data["table"]), tuple(data["classes"])
        counts = np.array(data["counts"], dtype=np.int64)
        if counts.shape != table.shape or len(classes) != table.classes:
            raise ValueError(f"counts of shape {counts.shape}")
        return NoisyFigures(table=table, counts=counts, classes=classes)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise SfumatoError(f"{run / FIGURES} holds no noisy counts ({error})", "restore it from a copy") from None
