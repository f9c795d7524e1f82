"""By how many processes and machines a run's steps were computed, as its ledger tells.

It changes nothing of the model, whose bytes are the same with any number of them, so it is no part of the statement
inside the model file: that one speaks of what is released, this of who has seen what is not. The ledger has a line for
it, written before the first sum leaves its process, and the statement beside the model, which says it, follows from the
ledger's line.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sfumato._checks import SfumatoError
from sfumato.privacy.ledger import Entry, Ledger

ENTRY = "workers"
"""The kind of the ledger's line."""


@dataclass(frozen=True, kw_only=True)
class Computed:
    """The most processes, and the most machines, that have ever taken the steps of a run together.

    **Guarantee.** Each of them holds sums of clipped gradients before their noise: whoever can read there, or on the
    wire between them, is told what the promise does not cover. `to_dict` and `not_covered` say so.

    >>> Computed(processes=8, machines=2).sentence
    'computed on 2 machines that see unprotected sums'
    """

    processes: int
    machines: int

    def __post_init__(self) -> None:
        numbers = (self.processes, self.machines)
        if any(type(one) is not int for one in numbers) or not 2 <= self.processes >= self.machines >= 1:
            raise SfumatoError(
                f"a run was computed by {self.processes!r} processes on {self.machines!r} machines",
                "give at least two processes, and no more machines than processes",
            )

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Computed | None:
        """As a ledger's lines tell; None of a run of one process."""
        found: Computed | None = None
        for entry in entries:
            if entry.kind == ENTRY:
                if set(entry.body) != {"processes", "machines"}:
                    raise SfumatoError(f"line {entry.index + 1} of the ledger does not say who computed", _DAMAGED)
                found = cls(**entry.body).joined(found)
        return found

    def record(self, ledger: Ledger) -> None:
        """Write down that these are about to take steps, where fewer have done so before.

        The line is a function of these numbers, so a run that is begun again and again by as many has one. It is safe
        on the disk when this returns: sums that have left cannot be taken back, even where the power fails.
        """
        earlier = Computed.of(ledger.entries)
        if self.joined(earlier) != earlier:
            ledger.append(ENTRY, {"processes": self.processes, "machines": self.machines})
            ledger.sync()

    def joined(self, earlier: Computed | None) -> Computed:
        """The most of both."""
        if earlier is None:
            return self
        most = max(self.processes, earlier.processes), max(self.machines, earlier.machines)
        return Computed(processes=most[0], machines=most[1])

    @property
    def sentence(self) -> str:
        """Who they are, in the words of the statement's field."""
        where = f"on {self.machines} machines" if self.machines > 1 else f"by {self.processes} processes of one machine"
        return f"computed {where} that see unprotected sums"

    @property
    def not_covered(self) -> str:
        """What the promise does not speak of."""
        wire = (
            "the wire between them is"
            if self.machines > 1
            else "what they tell each other by the loopback interface is"
        )
        return (
            f"The sums before their noise: {self.sentence}; {wire} neither encrypted nor authenticated, so all of them "
            "and whatever lies between are trusted as one machine is."
        )

    def to_dict(self) -> dict[str, Any]:
        """What the statement says of it."""
        return {"processes": self.processes, "machines": self.machines, "sentence": self.sentence}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Computed:
        """What `to_dict` wrote."""
        try:
            return cls(processes=data["processes"], machines=data["machines"])
        except (KeyError, TypeError):
            raise SfumatoError("the statement does not say who computed", "restore it from a copy") from None


_DAMAGED = "the ledger was changed by hand or damaged; restore it from a copy, or discard the run"
