"""A fixed order: bins take turns, epoch after epoch, for data that cannot be sampled afresh for every step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sfumato._checks import one_of, within
from sfumato.privacy.participation.participation import BatchedParticipation
from sfumato.privacy.unit import ADJACENCIES

Assignment = Literal["random", "position", "time"]
ASSIGNMENTS = ("random", "position", "time")


@dataclass(frozen=True, kw_only=True)
class FixedOrder(BatchedParticipation):
    """Each example belongs to one of ceil(N / B) bins. In step t (from 0), bin t modulo their number takes part.

    Args:
        batch_size: B, the expected number of participants of a step. Sums are divided by it, however many a bin holds.
        assignment: how the bin of an example is decided.
            "random": an independent uniform draw from the secret run key for each record number.
            "position": bin i holds the records i B to (i + 1) B of the file.
            "time": each record's own time stamp decides its step. Each record takes part once, so there are no more
            steps than bins.

    **Guarantee.** The number of steps between two participations of one unit equals the number of bins. With "random"
    and "time", the bins of other records do not depend on whether one record is present. With "position" they do,
    because all later records would move up; it is therefore covered only for zero-out adjacency, where every record
    keeps its place.

    >>> FixedOrder(batch_size=300).bins(1000)
    4
    """

    name = "fixed-order"

    assignment: Assignment = "random"

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("assignment", self.assignment, ASSIGNMENTS)

    def check(self, population: int) -> None:
        """Refuse a population that this rule cannot draw from."""
        within("batch_size", self.batch_size, None, population, remedy=f"give at most the {population} examples")

    def bins(self, population: int) -> int:
        """ceil(N / B)."""
        return -(-population // self.batch_size)

    def gap(self, population: int) -> int:
        """The number of steps between two participations of a unit: the number of bins."""
        return self.bins(population)

    @property
    def adjacencies(self) -> tuple[str, ...]:
        """With "position", only zero-out."""
        return ("zero-out",) if self.assignment == "position" else tuple(ADJACENCIES)

    def probability(self, population: int) -> float:
        """The probability that an example takes part in a step, averaged over all steps: 1 / bins."""
        return 1 / self.bins(population)

    def largest_batch(self, population: int, steps: int) -> int:
        """With "time", the largest batch size that leaves at least as many bins as steps."""
        return (population - 1) // (steps - 1) if self.assignment == "time" and steps > 1 else population

    def most_steps(self, population: int) -> int | None:
        """With "time", the number of bins, because each record takes part once."""
        return self.bins(population) if self.assignment == "time" else None

    def facts(self, population: int) -> dict[str, object]:
        """How the bin of an example is decided, and the number of bins."""
        decided = {"random": "a secret draw", "position": "place in the file", "time": "time stamp"}
        return {"order": decided[self.assignment], "batch_size": self.batch_size, "bins": self.bins(population)}

    def describe(self, population: int, one: str = "example") -> str:
        """Its description in a statement; `one` is the name of a single participant."""
        bins = self.bins(population)
        match self.assignment:
            case "random":
                return f"each {one} in every {bins}th step, beginning with one of the first {bins} drawn in secret"
            case "position":
                return f"each {one} in every {bins}th step, by its place in the file, whose order is public"
            case "time":
                return f"each {one} in at most one step, decided by its own time stamp"

    def remark(self, one: str = "example") -> str:
        """The same in plain words."""
        match self.assignment:
            case "random":
                order = "at regular intervals, in an order that was drawn once in secret"
            case "position":
                order = "at regular intervals, by its place in the file, whose order is taken as public"
            case "time":
                order = "at most once, in the step decided by its own time stamp"
        return (
            f"Each {one} took part {order}. The guarantee depends on the noise alone, not on secrecy of who took part."
        )
