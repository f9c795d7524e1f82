"""What every rule of participation answers. Its own class adds its fields, frozen, and says where it differs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from sfumato._checks import positive_integer
from sfumato.privacy.unit import ADJACENCIES


@dataclass(frozen=True, kw_only=True)
class Participation(ABC):
    """Who takes part in which step."""

    name: ClassVar[str]
    """As the command line and recipes spell it."""
    adjacencies: ClassVar[tuple[str, ...]] = tuple(ADJACENCIES)
    """The adjacencies under which who else takes part does not depend on the one unit: both, by default."""
    longest_band: ClassVar[int] = 1
    """How many steps' noise may hang together where coins decide."""
    padded_size: ClassVar[int | None] = None
    """The size to which every step is filled up, so that its shape tells nothing of how many take part; None for steps
    of the size that they have."""

    @abstractmethod
    def check(self, population: int) -> None:
        """Refuse a population that this rule cannot draw from."""

    @abstractmethod
    def probability(self, population: int) -> float:
        """q, the chance of one example to take part in one step, over all steps on average."""

    @abstractmethod
    def expected_batch_size(self, population: int) -> int:
        """B, what sums are divided by: a public constant, never the realised size."""

    @abstractmethod
    def with_batch_size(self, batch_size: int) -> Self:
        """The same rule with this batch size."""

    def gap(self, population: int) -> int | None:
        """The steps from one participation of a unit to its next; None where coins decide."""
        return None

    def largest_batch(self, population: int, steps: int) -> int:
        """The largest batch size with which this rule can draw from the population for so many steps."""
        return population

    def most_steps(self, population: int) -> int | None:
        """The most steps that it knows participants for; None where there is no limit."""
        return None

    def facts(self, population: int) -> dict[str, object]:
        """What a table tells of it beside its name: its own fields and numbers that follow."""
        return {"batch_size": self.expected_batch_size(population)}

    @abstractmethod
    def words(self, population: int, one: str = "example") -> str:
        """What a statement says of it; `one` is what takes part."""

    def remark(self, one: str = "example") -> str:
        """What a statement says of it to a reader who has never heard of differential privacy; nothing by default."""
        return ""


@dataclass(frozen=True, kw_only=True)
class Batches(Participation):
    """A rule with a batch size of its own.

    Args:
        batch_size: B, the expected number of participants of a step.
    """

    batch_size: int

    def __post_init__(self) -> None:
        positive_integer("batch_size", self.batch_size, remedy="give the expected number of examples in a step")

    def probability(self, population: int) -> float:
        """q = B / N."""
        return self.batch_size / population

    def expected_batch_size(self, population: int) -> int:
        """B, what sums are divided by: a public constant, never the realised size."""
        return self.batch_size

    def with_batch_size(self, batch_size: int) -> Self:
        """The same rule with this batch size."""
        return replace(self, batch_size=batch_size)

    def facts(self, population: int) -> dict[str, object]:
        """The expected batch size and by what chance an example takes part."""
        return {"batch_size": self.batch_size, "sampling_probability": self.probability(population)}
