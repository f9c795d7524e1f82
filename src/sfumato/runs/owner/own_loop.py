"""A training loop of one's own in the owner's list of uses."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from sfumato._checks import SfumatoError
from sfumato.data import Source
from sfumato.privacy import PrivacyPlan
from sfumato.runs.owner import sentences, uses
from sfumato.runs.owner.composition import Together, side_by_side
from sfumato.runs.owner.known import Data

OWN = "a loop of one's own"
"""What it is called on the list."""


@dataclass(frozen=True)
class RecordedUse:
    """A use of private data that is on the owner's list.

    Args:
        run: its identity on the list; empty where nothing was recorded, since the data are public.
        earlier: how many other uses of these data are on the list.
        together: what all of them cost together with this one, for each unit by itself, that of this one first.
        note: the same in one line, or what else the owner should know; empty where there is nothing to say.
    """

    run: str
    earlier: int = 0
    together: tuple[Together, ...] = field(default=(), repr=False)
    note: str = ""


def record_use(source: Source, plan: PrivacyPlan, *, run: str | None = None, budget: str | None = None) -> RecordedUse:
    """Put a training loop of one's own on the owner's list of uses, before its first step.

    `sfumato.train` does so by itself. A loop that is built from the pieces must do it, or the totals of this and all
    other runs on the same data leave it out.

    Args:
        source: what is about to be trained on. Nothing is recorded of public data.
        plan: what the loop is about to release.
        run: the identity that an earlier call gave, for a loop that resumes: it is counted once. None for a new one.
        budget: the name of a budget (`set_budget`) that the whole plan is reserved in too, or the use is refused.

    **Guarantee.** After the call the use is on disk. It counts with all runs on the same records and with those on
    whatever was read from the same place, for one unit (example or user) at a time (`composition.together`).

    Errors: `SfumatoError` where the list cannot be read or extended, and for a `run` that is on it with another plan,
    or a source that was not opened.
    """
    if not isinstance(source, Source):
        remedy = "open it with `sfumato.open_source`, and give that"
        raise SfumatoError(f"source must be an opened source, got {source!r}", remedy)
    if source.public:
        if budget is not None:
            raise SfumatoError(f"`budget` is {budget}, and the data are public, which cost nothing", "leave it out")
        return RecordedUse(run="", note=sentences.called_public(source) or "")
    data, identity = Data.of(source), run or secrets.token_hex(32)
    uses.record(data, plan, run=identity, name=OWN, budget=budget)
    notes = [*sentences.before(data, plan, seeded=False, budget=budget, run=identity)]
    earlier = uses.earlier(data, but=identity)
    return RecordedUse(
        run=identity,
        earlier=len(earlier.plans),
        together=tuple(side_by_side([plan, *earlier.plans])),
        note=f"note: {'; '.join(note.removeprefix('note: ') for note in notes)}" if notes else "",
    )
