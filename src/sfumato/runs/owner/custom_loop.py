"""Recording a custom training loop on the owner's list of uses."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from sfumato._checks import SfumatoError
from sfumato.data import Source
from sfumato.privacy import PrivacyPlan
from sfumato.runs.owner import sentences, uses
from sfumato.runs.owner.composition import JointCost, joint_costs
from sfumato.runs.owner.data_identity import DataIdentity

OWN = "a loop of one's own"
"""The name of a custom loop on the list."""


@dataclass(frozen=True)
class RecordedUse:
    """A use of private data that is on the owner's list.

    Args:
        run: the identity on the list; empty if nothing was recorded because the data are public.
        earlier: the number of other uses of these data on the list.
        joint_costs: the joint cost of this and all other uses, for each unit separately, starting with this use's unit.
        note: the same in one line, with other notes for the owner; may be empty.
    """

    run: str
    earlier: int = 0
    joint_costs: tuple[JointCost, ...] = field(default=(), repr=False)
    note: str = ""


def record_use(source: Source, plan: PrivacyPlan, *, run: str | None = None, budget: str | None = None) -> RecordedUse:
    """Put a custom training loop on the owner's list of uses, before its first step.

    `sfumato.train` does this automatically. A custom loop must call it; otherwise the totals of all runs on the same
    data leave the loop out.

    Args:
        source: the training data. Nothing is recorded if they are public.
        plan: what the loop will release.
        run: the identity that an earlier call returned, for a loop that resumes: it counts once. None for a new loop.
        budget: the name of a budget (`set_budget`) in which to reserve the whole plan. A use that does not fit is
            refused.

    **Guarantee.** After the call the use is on disk. It counts with all runs on the same records and with those on
    whatever was read from the same place, for one unit (example or user) at a time (`composition.joint_cost`).

    Errors: `SfumatoError` if the list cannot be read or extended, if `run` is on the list with another plan, or if the
    source was not opened.
    """
    if not isinstance(source, Source):
        remedy = "open it with `sfumato.open_source`, and give that"
        raise SfumatoError(f"source must be an opened source, got {source!r}", remedy)
    if source.public:
        if budget is not None:
            raise SfumatoError(f"`budget` is {budget}, but the data are public and cost nothing", "leave it out")
        return RecordedUse(run="", note=sentences.declared_public_note(source) or "")
    data, identity = DataIdentity.from_source(source), run or secrets.token_hex(32)
    uses.record(data, plan, run=identity, name=OWN, budget=budget)
    notes = [*sentences.notes_before(data, plan, seeded=False, budget=budget, run=identity)]
    earlier = uses.earlier_uses(data, but=identity)
    return RecordedUse(
        run=identity,
        earlier=len(earlier.plans),
        joint_costs=tuple(joint_costs([plan, *earlier.plans])),
        note=f"note: {'; '.join(note.removeprefix('note: ') for note in notes)}" if notes else "",
    )
