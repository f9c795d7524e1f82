"""What every rule of participation answers. Its own class adds its fields, frozen, and says where it differs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Self

from sfumato._checks import positive_integer
from sfumato.privacy.unit import ADJACENCIES


class Participation(ABC):
    """Who takes part in which step.

    Args:
        batch_size: B, the expected number of participants of a step.
    """

    batch_size: int

    def __post_init__(self) -> None:
        positive_integer("batch_size", self.batch_size, remedy="give the expected number of examples in a step")

    @abstractmethod
    def check(self, population: int) -> None:
        """Refuse a population that this rule cannot draw from."""

    @property
    def adjacencies(self) -> tuple[str, ...]:
        """The adjacencies under which who else takes part does not depend on the one unit: both, by default."""
        return tuple(ADJACENCIES)

    def probability(self, population: int) -> float:
        """q = B / N, the chance of one example to take part in one step, over all steps on average."""
        return self.batch_size / population

    def expected_batch_size(self, population: int) -> int:
        """B, what sums are divided by: a public constant, never the realised size."""
        return self.batch_size

    def with_batch_size(self, batch_size: int) -> Self:
        """The same rule with this batch size."""
        return replace(self, batch_size=batch_size)  # type: ignore[type-var]

    def largest_batch(self, population: int) -> int:
        """The largest batch size with which this rule can draw from the population."""
        return population

    def most_steps(self, population: int) -> int | None:
        """The most steps that it knows participants for; None where there is no limit."""
        return None

    @abstractmethod
    def words(self, population: int) -> str:
        """What a statement says of it."""

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The rule of a plan as `PrivacyPlan.to_dict` writes it."""
        return cls(**{field.name: data[field.name] for field in fields(cls)})  # type: ignore[arg-type]
