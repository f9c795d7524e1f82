"""Canary users: random directions of the backbone, which coins put into the sums of a training of embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from sfumato._checks import SfumatoError, positive_integer
from sfumato.data import Preparation
from sfumato.embedding.choices import WITH_NOISE, Clients
from sfumato.privacy import PrivacyPlan
from sfumato.training.parts.audit import FEWEST
from sfumato.training.parts.directions import SOURCE, Directions, refuse_moving
from sfumato.training.parts.part import Part

INSIDE = "backbone."
"""What the names of the released weights begin with, where a head over classes is trained beside them."""


def check(audit: int | None, method: str) -> None:
    """Refuse a number of canaries that shows nothing, and methods that take no sums of updates with noise."""
    if audit is None:
        return
    if positive_integer("audit", audit, remedy="give a number such as 100") < FEWEST:
        raise SfumatoError(f"audit must be at least {FEWEST} canaries, got {audit}", "give a number such as 100")
    audited = (*WITH_NOISE, "dpsgd")
    if method not in audited:
        raise SfumatoError(
            f"audit is {audit}, and method {method} has no steps that canary users could be in",
            f"leave it out, or take method {' or '.join(audited)}",
        )


def planned(audit: int | None, plan: PrivacyPlan, clients: Clients) -> Directions | None:
    """The part of a run with so many canary users; None without any."""
    check(audit, clients.method)
    if audit is None:
        return None
    refuse_moving(f"audit is {audit}", plan)
    return Directions(count=audit, plan=plan, inside=INSIDE if clients.head_in_model else "")


def options(audit: int | None) -> dict[str, Any]:
    """The same as options of a classifier's training."""
    return {} if audit is None else {"audit": audit, "audit_source": SOURCE}


def of_released(parts: Sequence[Part], module: nn.Module, transform: Preparation) -> tuple[Part, ...]:
    """The parts of a classifier's training, with canaries in the backbone alone: its head is not released."""
    return tuple(
        replace(part, inside=INSIDE).with_model(module, transform) if isinstance(part, Directions) else part
        for part in parts
    )


def of_record(record: dict[str, Any]) -> int | None:
    """How many a run began with, by its settings.json."""
    return record.get("audit", {}).get("canaries")
