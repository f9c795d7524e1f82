"""What a run publishes besides its model: noisy figures of its test part, and the audit of its step."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

import numpy as np

from sfumato._checks import SfumatoError
from sfumato._files import write
from sfumato.audit import Bound, NoiseAudit
from sfumato.privacy import NoisyTable
from sfumato.report import NoisyFigures
from sfumato.runs import directory as names
from sfumato.runs.directory import RunDirectory

T = TypeVar("T")
ENTRY = "figures"
"""The kind of the ledger's line that records the figures, and the key of their file's hash in its last line."""


def body(table: NoisyTable, step: int) -> dict[str, Any]:
    """The body of the ledger's line about the release: the table and the step."""
    return {"step": step, "table": table.to_dict()}


def save(run: RunDirectory, figures: NoisyFigures) -> None:
    """Write the counts atomically. They may be published."""
    data = {"table": figures.table.to_dict(), "classes": list(figures.classes), "counts": figures.counts.tolist()}
    write(run / names.FIGURES, json.dumps(data).encode() + b"\n")


def read(run: RunDirectory) -> NoisyFigures | None:
    """The figures of a run, from its noisy counts; None if it published none."""
    return _read(run, names.FIGURES, "noisy counts", _figures)


def _figures(data: Mapping[str, Any]) -> NoisyFigures:
    table, classes = NoisyTable.from_dict(data["table"]), tuple(data["classes"])
    counts = np.array(data["counts"], dtype=np.int64)
    if counts.shape != table.shape or len(classes) != table.classes:
        raise ValueError(f"counts of shape {counts.shape}")
    return NoisyFigures(table=table, counts=counts, classes=classes)


def _read(run: RunDirectory, name: str, what: str, parse: Callable[[Mapping[str, Any]], T]) -> T | None:
    """What a file of the run holds; None if there is no such file."""
    if not (run / name).is_file():
        return None
    data = run.read_json(name)
    try:
        return parse(data)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise SfumatoError(f"{run / name} holds no {what} ({error})", "restore it from a copy, or delete it") from None


SURE = 1 - 1e-6
"""The confidence of a bound that raises an alarm. At 95%, one audit in twenty of correct code would raise one."""


@dataclass(frozen=True, kw_only=True)
class AuditOutcome:
    """The outcome of an audit. It may be published: it follows from synthetic records alone.

    Args:
        nominal: the guaranteed epsilon.
        bounds: lower bounds at the guarantee's delta; the first has the weakest assumptions.
        sure: the same bounds at confidence `SURE`. They decide whether there is an alarm.
        noise: whether the noise of each parameter is the plan's.
        plan: the fingerprint of the plan.
        details: the observations.
    """

    nominal: float
    bounds: tuple[Bound, ...]
    plan: str
    details: Mapping[str, Any] = field(default_factory=dict, repr=False)
    sure: tuple[Bound, ...] = field(default=(), repr=False)
    noise: NoiseAudit | None = None

    @property
    def exceeds(self) -> bool:
        """Whether a bound at confidence `SURE` lies above the guarantee."""
        return any(bound.refutes(self.nominal) for bound in self.sure or self.bounds)

    @property
    def refuted(self) -> bool:
        """Whether a bound at confidence `SURE` lies above the guarantee, or the noise is not the plan's. Either means
        that something is wrong."""
        return self.exceeds or (self.noise is not None and self.noise.has_fault)

    @property
    def doubtful(self) -> bool:
        """Whether only a bound at its own confidence lies above the guarantee. Chance causes this with probability at
        most 1 - confidence."""
        return not self.exceeds and any(bound.refutes(self.nominal) for bound in self.bounds)

    @property
    def summary(self) -> dict[str, Any]:
        """The outcome as plain data, without the details."""
        return {
            "nominal": self.nominal,
            "refuted": self.refuted,
            "bounds": [bound.to_dict() for bound in self.bounds],
            "sure": [bound.to_dict() for bound in self.sure],
            "plan": self.plan,
            **({} if self.noise is None else {"noise": self.noise.to_dict()}),
        }

    def to_dict(self) -> dict[str, Any]:
        """The outcome as plain data for `from_dict`."""
        return {**self.summary, **self.details}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> AuditOutcome:
        """The outcome that `to_dict` wrote."""
        known = {one.name for one in fields(Bound)}
        bounds, sure = (
            tuple(Bound(**{name: bound[name] for name in known}) for bound in data.get(which, ()))
            for which in ("bounds", "sure")
        )
        own = ("nominal", "refuted", "bounds", "sure", "plan", "noise")
        return cls(
            nominal=float(data["nominal"]),
            bounds=bounds,
            plan=str(data["plan"]),
            details={name: value for name, value in data.items() if name not in own},
            sure=sure,
            noise=NoiseAudit.from_dict(data["noise"]) if "noise" in data else None,
        )

    def save(self, run: RunDirectory) -> None:
        """Write the audit atomically."""
        write(run / names.STEP_AUDIT, json.dumps(self.to_dict(), indent=2, allow_nan=False).encode() + b"\n")

    @classmethod
    def read(cls, run: RunDirectory) -> AuditOutcome | None:
        """The audit of the run's step; None if there is none."""
        return _read(run, names.STEP_AUDIT, "audit", cls.from_dict)
