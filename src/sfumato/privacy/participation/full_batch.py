"""Full batches: every example takes part in every step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from sfumato.privacy.participation.participation import Participation


@dataclass(frozen=True, kw_only=True)
class FullBatch(Participation):
    """Every example takes part in every step; sums are divided by N, as declared.

    >>> FullBatch().probability(1437), FullBatch().expected_batch_size(1437)
    (1.0, 1437)
    """

    name = "full-batch"

    def check(self, population: int) -> None:
        """Refuse a population that this rule cannot draw from: there is none."""

    def probability(self, population: int) -> float:
        """The chance of one example to take part in one step: one."""
        return 1.0

    def expected_batch_size(self, population: int) -> int:
        """What sums are divided by: the declared N, a public constant."""
        return population

    def with_batch_size(self, batch_size: int) -> Self:
        """Itself: its batch is the population."""
        return self

    def gap(self, population: int) -> int:
        """The steps from one participation of a unit to its next: one."""
        return 1

    def words(self, population: int, one: str = "example") -> str:
        """What a statement says of it; `one` is what takes part."""
        return f"every {one} in every step"
