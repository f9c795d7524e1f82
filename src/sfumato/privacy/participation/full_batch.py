"""Full batches: every example takes part in every step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from sfumato.privacy.participation.participation import Participation


@dataclass(frozen=True, kw_only=True)
class FullBatch(Participation):
    """Every example takes part in every step. Sums are divided by N, as declared.

    >>> FullBatch().probability(1437), FullBatch().expected_batch_size(1437)
    (1.0, 1437)
    """

    name = "full-batch"
    alike = True

    def check(self, population: int) -> None:
        """Accepts every population."""

    def probability(self, population: int) -> float:
        """The probability that an example takes part in a step: one."""
        return 1.0

    def expected_batch_size(self, population: int) -> int:
        """The divisor of the sums: the declared N, a public constant."""
        return population

    def with_batch_size(self, batch_size: int) -> Self:
        """This rule: its batch is always the population."""
        return self

    def gap(self, population: int) -> int:
        """The number of steps between two participations of a unit: one."""
        return 1

    def describe(self, population: int, one: str = "example") -> str:
        """Its description in a statement; `one` is the name of a single participant."""
        return f"every {one} in every step"
