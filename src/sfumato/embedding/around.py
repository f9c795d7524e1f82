"""What may be around a training of embeddings: a budget, kept weights of single rounds, and canary users."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sfumato._checks import SfumatoError
from sfumato.embedding.choices import WITH_NOISE, WITHOUT_PLAN, Clients
from sfumato.training.parts import audit as audits
from sfumato.training.parts import kept_weights
from sfumato.training.parts.directions import SOURCE, Directions
from sfumato.training.parts.part import Part

BY_ROUNDS = (*WITH_NOISE, "dpsgd")
"""Methods that take rounds by a plan, with noise in sums of updates or gradients."""
INSIDE = "backbone."
"""What the names of the released weights begin with, where a head over classes is trained beside them."""


def check(options: Mapping[str, Any], method: str) -> None:
    """Refuse what is no number, canaries too few to show anything, and methods that have nothing of the kind."""
    budget, audit, keep = (options.get(name) for name in ("budget", "audit", "keep"))
    if budget is not None and method in WITHOUT_PLAN:
        raise SfumatoError(f"`budget` is {budget}, and method {method} spends nothing of it", "leave it out")
    audits.check_count(audit)
    kept_weights.check_count(keep)
    for given, lacking in (
        (audit is not None and f"audit is {audit}", "no steps that canary users could be in"),
        (keep and f"keep is {keep}", "no rounds by a plan whose weights could be kept"),
    ):
        if given and method not in BY_ROUNDS:
            remedy = f"leave it out, or take method {' or '.join(BY_ROUNDS)}"
            raise SfumatoError(f"{given}, and method {method} has {lacking}", remedy)


def options_of(options: Mapping[str, Any], method: str) -> dict[str, Any]:
    """The same as options of a classifier's training: canaries are directions, and whitening keeps no rounds."""
    audited = {} if options.get("audit") is None else {"audit_source": SOURCE}
    return {**options, **audited, **({} if method in BY_ROUNDS else {"keep": 0})}


def of_released(parts: Sequence[Part], clients: Clients) -> tuple[Part, ...]:
    """The parts with canaries in the backbone alone: a head is not released."""
    inside = INSIDE if clients.head_in_model else ""
    return tuple(replace(part, inside=inside) if isinstance(part, Directions) else part for part in parts)
