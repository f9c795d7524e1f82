"""The interface of all participation rules. Each rule is a frozen class that adds fields and overrides methods."""

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
    """The name on the command line and in recipes."""
    adjacencies: ClassVar[tuple[str, ...]] = tuple(ADJACENCIES)
    """The adjacencies under which one unit does not affect who else takes part. By default both."""
    longest_band: ClassVar[int] = 1
    """If participants are sampled: the most consecutive steps whose noise may be correlated."""
    alike: ClassVar[bool] = False
    """Whether the participants of each step are chosen by the same rule, whatever those of other steps are."""
    padded_size: ClassVar[int | None] = None
    """The size to which every step is padded, so that its shape does not reveal how many take part. None if steps are
    not padded."""

    @abstractmethod
    def check(self, population: int) -> None:
        """Refuse a population that this rule cannot draw from."""

    @abstractmethod
    def probability(self, population: int) -> float:
        """q, the probability that an example takes part in a step, averaged over all steps."""

    @abstractmethod
    def expected_batch_size(self, population: int) -> int:
        """B, the divisor of the sums: a public constant, never the realised size."""

    @abstractmethod
    def with_batch_size(self, batch_size: int) -> Self:
        """The same rule with this batch size."""

    def gap(self, population: int) -> int | None:
        """The number of steps between two participations of a unit; None if participants are sampled."""
        return None

    def largest_batch(self, population: int) -> int:
        """The largest batch size that this rule can draw from the population."""
        return population

    def facts(self, population: int) -> dict[str, object]:
        """Its rows in a table: its fields and the numbers that follow from them, without its name."""
        return {"batch_size": self.expected_batch_size(population)}

    @abstractmethod
    def describe(self, population: int, one: str = "example") -> str:
        """Its description in a statement; `one` is the name of a single participant."""

    def remark(self, one: str = "example") -> str:
        """The same for a reader who has never heard of differential privacy; empty by default."""
        return ""


@dataclass(frozen=True, kw_only=True)
class BatchedParticipation(Participation):
    """A rule with its own batch size.

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
        """B, the divisor of the sums: a public constant, never the realised size."""
        return self.batch_size

    def with_batch_size(self, batch_size: int) -> Self:
        """The same rule with this batch size."""
        return replace(self, batch_size=batch_size)

    def facts(self, population: int) -> dict[str, object]:
        """The expected batch size and the sampling probability."""
        return {"batch_size": self.batch_size, "sampling_probability": self.probability(population)}
