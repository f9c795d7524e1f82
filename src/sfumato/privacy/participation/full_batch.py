"""Full batches: every example takes part in every step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class FullBatch:
    """Every example takes part in every step; sums are divided by N, as declared.

    >>> FullBatch().probability(1437), FullBatch().expected_batch_size(1437)
    (1.0, 1437)
    """

    def check(self, population: int) -> None:
        """Refuse a population that this rule cannot draw from: there is none."""

    def probability(self, population: int) -> float:
        """The chance of one example to take part in one step: one."""
        return 1.0

    def expected_batch_size(self, population: int) -> int:
        """What sums are divided by: the declared N, a public constant."""
        return population

    def words(self, population: int) -> str:
        """What a statement says of it."""
        return "every example in every step"

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> FullBatch:
        """The rule of a plan as `PrivacyPlan.to_dict` writes it."""
        return cls()
