"""The published figures of a run: noisy counts of its test part, bound by the ledger's last lines."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sfumato._checks import SfumatoError, positive
from sfumato._files import write
from sfumato.privacy import Entry, NoisyTable
from sfumato.runs.directory import FIGURES, RunDirectory
from sfumato.runs.figures.noisy_figures import NoisyFigures
from sfumato.runs.figures.operating import OperatingPoint

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
    data = {
        "table": figures.table.to_dict(),
        "temperature": figures.temperature,
        "classes": list(figures.classes),
        "counts": (figures.counts if figures.group_counts is None else figures.group_counts).tolist(),
        **({"groups": list(figures.groups)} if figures.groups else {}),
        **({} if figures.operating is None else {"operating_point": figures.operating.to_dict()}),
    }
    write(run / FIGURES, json.dumps(data).encode() + b"\n")


def read(run: RunDirectory) -> NoisyFigures | None:
    """The figures of a run, from its noisy counts; None if it published none."""
    if not (run / FIGURES).is_file():
        return None
    data = run.read_json(FIGURES)
    try:
        table = NoisyTable.from_dict(data["table"])
        counts, groups = np.array(data["counts"], dtype=np.int64), tuple(data.get("groups", ()))
        if counts.shape != (*([table.groups] if groups else []), *table.shape) or len(data["classes"]) != table.classes:
            raise ValueError(f"counts of shape {counts.shape}")
        temperature = positive("temperature", data["temperature"])
        classes, operating = tuple(data["classes"]), data.get("operating_point")
        if operating is not None:
            operating = OperatingPoint.from_dict(operating)
            if operating.positive not in classes or len(classes) != 2 or not table.predictions:
                raise ValueError(f"an operating point for {operating.positive!r}")
        if (len(groups) or 1) != table.groups:
            raise ValueError(f"{len(groups)} groups")
        return NoisyFigures(
            table=table,
            counts=counts.sum(0) if groups else counts,
            classes=classes,
            temperature=temperature,
            operating=operating,
            groups=groups,
            group_counts=counts if groups else None,
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise SfumatoError(f"{run / FIGURES} holds no noisy counts ({error})", "restore it from a copy") from None
