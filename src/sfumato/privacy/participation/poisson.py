"""Poisson sampling: each example takes part by a coin of its own."""

from __future__ import annotations

from dataclasses import dataclass

from sfumato._checks import SfumatoError
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
