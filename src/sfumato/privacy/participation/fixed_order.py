"""A fixed order: bins that take turns, epoch after epoch, for data that cannot be sampled afresh for every step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sfumato._checks import SfumatoError, one_of
from sfumato.privacy.participation.participation import Batches
from sfumato.privacy.unit import ADJACENCIES

Assignment = Literal["random", "position", "time"]
ASSIGNMENTS = ("random", "position", "time")


@dataclass(frozen=True, kw_only=True)
class FixedOrder(Batches):
    """Each example belongs to one of ceil(N / B) bins, and step t (from 0) takes bin t modulo their number.

    Args:
        batch_size: B, the expected number of participants of a step; sums are divided by it, whatever a bin holds.
        assignment: what decides an example's bin.
            "random": an independent uniform draw of the secret run key for each record number.
            "position": bin i holds the records i B to (i + 1) B of the file.
            "time": each record's own time stamp decides its step; each takes part once, so there are no more steps
            than bins.

    **Guarantee.** Two participations of one unit are exactly as many steps apart as there are bins. Which bin others
    are in does not depend on whether one record is there ("random", "time"). With "position" it does, since all that
    follow would move up: that holds for zero-out alone, where every record keeps its place.

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
        if self.batch_size > population:
            raise SfumatoError(
                f"batch_size must not exceed the number of examples, got {self.batch_size} of {population}",
                f"give at most {population}",
            )

    def bins(self, population: int) -> int:
        """ceil(N / B)."""
        return -(-population // self.batch_size)

    def gap(self, population: int) -> int:
        """The steps from one participation of a unit to its next: as many as there are bins."""
        return self.bins(population)

    @property
    def adjacencies(self) -> tuple[str, ...]:
        """By position, zero-out alone."""
        return ("zero-out",) if self.assignment == "position" else tuple(ADJACENCIES)

    def probability(self, population: int) -> float:
        """The chance of one example to take part in one step, over all steps on average: one over the bins."""
        return 1 / self.bins(population)

    def largest_batch(self, population: int, steps: int) -> int:
        """By time, the one whose bins are still as many as the steps."""
        return (population - 1) // (steps - 1) if self.assignment == "time" and steps > 1 else population

    def most_steps(self, population: int) -> int | None:
        """By time each record takes part once, so the steps end with the bins."""
        return self.bins(population) if self.assignment == "time" else None

    def facts(self, population: int) -> dict[str, object]:
        """What decides an example's bin, and how many bins there are."""
        decided = {"random": "a secret draw", "position": "place in the file", "time": "time stamp"}
        return {"order": decided[self.assignment], "batch_size": self.batch_size, "bins": self.bins(population)}

    def words(self, population: int, one: str = "example") -> str:
        """What a statement says of it; `one` is what takes part."""
        bins = self.bins(population)
        match self.assignment:
            case "random":
                return f"each {one} in every {bins}th step, beginning with one of the first {bins} drawn in secret"
            case "position":
                return f"each {one} in every {bins}th step, by its place in the file, whose order is public"
            case "time":
                return f"each {one} in one step at most, which its own time stamp decides"

    def remark(self, one: str = "example") -> str:
        """The same in plain words."""
        match self.assignment:
            case "random":
                order = "every so many steps, by an order that was drawn in secret once"
            case "position":
                order = "every so many steps, by its place in the file, whose order is taken as public"
            case "time":
                order = "at most once, in the step that its own time stamp decides"
        return f"Each {one} took part {order}. The promise rests on the noise alone, not on who was drawn."
