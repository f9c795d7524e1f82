"""The number of processes and machines that computed a run's steps, as its ledger records it.

These numbers do not change the model, whose bytes are the same for any number of processes. So they are not part of the
statement in the model file. That statement is about the released values; these numbers are about who has seen the
unreleased ones. The ledger gets a line with them before the first sum leaves its process, and the statement beside the
model follows from that line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sfumato._checks import SfumatoError
from sfumato.privacy.ledger import Entry, Ledger

ENTRY = "workers"
"""The kind of the ledger entry."""


@dataclass(frozen=True, kw_only=True)
class ProcessCounts:
    """The most processes, and the most machines, that have taken the steps of a run together.

    **Guarantee.** Each of them holds sums of clipped gradients before the noise. Whoever can read there, or on the
    network between them, learns more than the promise covers. `to_dict` and `not_covered` say so.

    >>> ProcessCounts(processes=8, machines=2).sentence
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
    def from_entries(cls, entries: Iterable[Entry]) -> ProcessCounts | None:
        """The counts that the entries of a ledger record; None for a run of one process."""
        computed: ProcessCounts | None = None
        for entry in entries:
            if entry.kind == ENTRY:
                computed = cls.from_dict(entry.body).maximum(computed)
        return computed

    def record(self, ledger: Ledger) -> None:
        """Record that these processes are about to take steps, unless as many have done so before.

        The line is a function of the two numbers, so a run that is resumed by equally many processes has one line. It
        is safely on the disk when this returns: a sum that has left its process cannot be taken back, even if the power
        fails.
        """
        earlier = ProcessCounts.from_entries(ledger.entries)
        if self.maximum(earlier) != earlier:
            ledger.append(ENTRY, {"processes": self.processes, "machines": self.machines})
            ledger.sync()

    def maximum(self, earlier: ProcessCounts | None) -> ProcessCounts:
        """The larger of each number."""
        if earlier is None:
            return self
        most = max(self.processes, earlier.processes), max(self.machines, earlier.machines)
        return ProcessCounts(processes=most[0], machines=most[1])

    @property
    def sentence(self) -> str:
        """The words of the statement's field."""
        where = f"on {self.machines} machines" if self.machines > 1 else f"by {self.processes} processes of one machine"
        return f"computed {where} that see unprotected sums"

    @property
    def not_covered(self) -> str:
        """The line about what the promise does not cover."""
        wire = "the network between them is" if self.machines > 1 else "their traffic over the loopback interface is"
        return (
            f"The sums before their noise. They were {self.sentence}. As {wire} neither encrypted nor authenticated, "
            "all of them and everything between them are trusted like a single machine."
        )

    def to_dict(self) -> dict[str, Any]:
        """The statement's field."""
        return {"processes": self.processes, "machines": self.machines, "sentence": self.sentence}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ProcessCounts:
        """The value that `to_dict` wrote."""
        try:
            return cls(processes=data["processes"], machines=data["machines"])
        except (KeyError, TypeError):
            raise SfumatoError("the record does not say who computed", "restore it from a copy") from None
