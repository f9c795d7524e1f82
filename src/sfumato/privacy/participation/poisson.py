"""Poisson sampling: each example takes part by a coin of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sfumato._checks import SfumatoError, positive_integer


@dataclass(frozen=True, kw_only=True)
class Poisson:
    """Each example takes part in each step by a coin of its own, with probability `batch_size / population`.

    Args:
        batch_size: B, the expected number of participants of a step, below N.

    **Guarantee.** The probability is a function of two declared constants, so it does not depend on the data; batches
    have random sizes, and an empty one is a step like any other.

    >>> Poisson(batch_size=4096).probability(50_000)
    0.08192
    """

    batch_size: int

    def __post_init__(self) -> None:
        positive_integer("batch_size", self.batch_size, remedy="give the expected number of examples in a step")

    def check(self, population: int) -> None:
        """Refuse a population that this rule cannot draw from."""
        if self.batch_size >= population:
            raise SfumatoError(
                f"batch_size must be below the number of examples for Poisson sampling, "
                f"got {self.batch_size} of {population}",
                "give a smaller batch, or the whole data set for full-batch steps",
            )

    def probability(self, population: int) -> float:
        """q = B / N, the chance of one example to take part in one step."""
        return self.batch_size / population

    def expected_batch_size(self, population: int) -> int:
        """What sums are divided by: a public constant, never the realised size."""
        return self.batch_size

    def words(self, population: int) -> str:
        """What a statement says of it."""
        return f"each example drawn into each step with probability {self.probability(population):.6g}"

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Poisson:
        """The rule of a plan as `PrivacyPlan.to_dict` writes it."""
        return cls(batch_size=data["batch_size"])
