"""A fixed order: bins take turns, epoch after epoch, for data that cannot be sampled afresh for every step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sfumato._checks import one_of, within
from sfumato.privacy.participation.participation import BatchedParticipation
from sfumato.privacy.unit import ADJACENCIES

Assignment = Literal["random", "position"]
ASSIGNMENTS = ("random", "position")


@dataclass(frozen=True, kw_only=True)
class FixedOrder(BatchedParticipation):
    """Each example belongs to one of ceil(N / B) bins. In step t (from 0), bin t modulo their number takes part.

    Args:
        batch_size: B, the expected number of participants of a step. Sums are divided by it, however many a bin holds.
        assignment: how the bin of an example is decided.
            "random": an independent uniform draw from the secret run key for each record number.
            "position": bin i holds the records i B to (i + 1) B of the file.

    **Guarantee.** The number of steps between two participations of one unit equals the number of bins. With "random",
    the bins of other records do not depend on whether one record is present. With "position" they do, because all later
    records would move up; it is therefore covered only for zero-out adjacency, where every record keeps its place.

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

    def facts(self, population: int) -> dict[str, object]:
        """How the bin of an example is decided, and the number of bins."""
        decided = {"random": "a secret draw", "position": "place in the file"}
        return {"order": decided[self.assignment], "batch_size": self.batch_size, "bins": self.bins(population)}

    def describe(self, population: int, one: str = "example") -> str:
        """Its description in a statement; `one` is the name of a single participant."""
        bins = self.bins(population)
        if self.assignment == "position":
            return f"each {one} in every {bins}th step, by its place in the file, whose order is public"
        return f"each {one} in every {bins}th step, beginning with one of the first {bins} drawn in secret"

    def remark(self, one: str = "example") -> str:
        """The same in plain words."""
        order = "in an order that was drawn once in secret"
        if self.assignment == "position":
            order = "by its place in the file, whose order is taken as public"
        return (
            f"Each {one} took part at regular intervals, {order}. The guarantee depends on the noise alone, not on "
            "secrecy of who took part."
        )
