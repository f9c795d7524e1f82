"""Poisson sampling: each example takes part independently of the others. Optionally truncated to a largest size."""

from __future__ import annotations

from dataclasses import dataclass

from sfumato._checks import SfumatoError, positive_integer, within
from sfumato.privacy.participation.participation import BatchedParticipation


@dataclass(frozen=True, kw_only=True)
class Poisson(BatchedParticipation):
    """Each example takes part in each step independently, with probability `batch_size / population`.

    Args:
        batch_size: B, the expected number of participants of a step, below N.

    **Guarantee.** The probability is a function of two declared constants, so it does not depend on the data. Batches
    have random sizes, and an empty batch is a step like any other.

    >>> Poisson(batch_size=4096).probability(50_000)
    0.08192
    """

    name = "poisson"
    alike = True

    def check(self, population: int) -> None:
        """Refuse a batch size that this rule cannot draw from the population."""
        if self.batch_size >= population:
            raise SfumatoError(
                f"batch_size must be below the number of examples for Poisson sampling, "
                f"got {self.batch_size} of {population}",
                "give a smaller batch, or the whole data set for full-batch steps",
            )

    def largest_batch(self, population: int) -> int:
        """N - 1."""
        return population - 1

    def describe(self, population: int, one: str = "example") -> str:
        """Its description in a statement; `one` is the name of a single participant."""
        return f"each {one} drawn into each step with probability {self.probability(population):.6g}"


@dataclass(frozen=True, kw_only=True)
class TruncatedPoisson(Poisson):
    """Poisson sampling in which a uniformly random subset of size `largest` is kept if more are drawn.

    Args:
        batch_size: B, the expected number of participants of a step before truncation, below N.
        largest: the size to which larger steps are cut, at least B.

    **Guarantee.** If more than `largest` are drawn, who remains depends on everybody who was drawn, so one record's
    absence lets another one in. The guarantee therefore holds only for zero-out adjacency, with N public (arXiv
    2508.15089).
    """

    name = "truncated"
    adjacencies = ("zero-out",)

    largest: int

    def __post_init__(self) -> None:
        super().__post_init__()
        remedy = "give the size to which larger steps are cut, about four standard deviations above the batch size"
        largest = positive_integer("largest", self.largest, remedy=remedy)
        within("largest", largest, self.batch_size, None, remedy=remedy)

    def largest_batch(self, population: int) -> int:
        """The number kept in a truncated step."""
        return min(self.largest, population - 1)

    @property
    def padded_size(self) -> int:
        """The number kept in a truncated step."""
        return self.largest

    def facts(self, population: int) -> dict[str, object]:
        """The facts of Poisson sampling, and the largest batch."""
        return {**super().facts(population), "largest_batch": self.largest}

    def describe(self, population: int, one: str = "example") -> str:
        """Its description in a statement; `one` is the name of a single participant."""
        return (
            f"each {one} drawn into each step with probability {self.probability(population):.6g}, at most "
            f"{self.largest} of them, the number of {one}s being public"
        )

    def remark(self, one: str = "example") -> str:
        """The same in plain words."""
        return (
            f"Each step drew {one}s at random and kept at most {self.largest} of them. The number of {one}s in the "
            "data is taken as public."
        )
