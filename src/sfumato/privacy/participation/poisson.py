"""Poisson sampling: each example takes part by a coin of its own; or cut at a largest size, for steps of one shape."""

from __future__ import annotations

from dataclasses import dataclass

from sfumato._checks import SfumatoError, positive_integer
from sfumato.privacy.participation.participation import Batches


@dataclass(frozen=True, kw_only=True)
class Poisson(Batches):
    """Each example takes part in each step by a coin of its own, with probability `batch_size / population`.

    Args:
        batch_size: B, the expected number of participants of a step, below N.

    **Guarantee.** The probability is a function of two declared constants, so it does not depend on the data; batches
    have random sizes, and an empty one is a step like any other.

    >>> Poisson(batch_size=4096).probability(50_000)
    0.08192
    """

    name = "poisson"

    def check(self, population: int) -> None:
        """Refuse a population that this rule cannot draw from."""
        if self.batch_size >= population:
            raise SfumatoError(
                f"batch_size must be below the number of examples for Poisson sampling, "
                f"got {self.batch_size} of {population}",
                "give a smaller batch, or the whole data set for full-batch steps",
            )

    def largest_batch(self, population: int, steps: int) -> int:
        """One less than all."""
        return population - 1

    def words(self, population: int, one: str = "example") -> str:
        """What a statement says of it; `one` is what takes part."""
        return f"each {one} drawn into each step with probability {self.probability(population):.6g}"


@dataclass(frozen=True, kw_only=True)
class TruncatedPoisson(Poisson):
    """Poisson sampling; of more participants than `largest` a uniformly drawn subset of that size remains.

    Args:
        batch_size: B, the expected number of participants of a step before the cut, below N.
        largest: the size at which a step is cut, at least B.

    **Guarantee.** Where more come up than `largest`, who remains depends on all who came up, so one record's absence
    lets another one in: it holds for zero-out alone, with N public (arXiv 2508.15089).
    """

    name = "truncated"
    adjacencies = ("zero-out",)

    largest: int

    def __post_init__(self) -> None:
        super().__post_init__()
        remedy = "give the size at which a step is cut, some four standard deviations above the batch size"
        if positive_integer("largest", self.largest, remedy=remedy) < self.batch_size:
            raise SfumatoError(
                f"largest must be at least the batch size, got {self.largest} for {self.batch_size}", remedy
            )

    def largest_batch(self, population: int, steps: int) -> int:
        """As many as remain after a cut."""
        return min(self.largest, population - 1)

    @property
    def padded_size(self) -> int:
        """As many as remain after a cut."""
        return self.largest

    def facts(self, population: int) -> dict[str, object]:
        """Those of Poisson sampling, and the cut."""
        return {**super().facts(population), "largest_batch": self.largest}

    def words(self, population: int, one: str = "example") -> str:
        """What a statement says of it; `one` is what takes part."""
        return (
            f"each {one} drawn into each step with probability {self.probability(population):.6g}, at most "
            f"{self.largest} of them, the number of {one}s being public"
        )

    def remark(self, one: str = "example") -> str:
        """The same in plain words."""
        return (
            f"Steps were drawn at random and cut at {self.largest} {one}s. The number of {one}s in the data is "
            "taken as public."
        )
