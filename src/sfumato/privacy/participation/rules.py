"""The interface of all rules of participation, and the rules: samples, full batches, bins and groups in turn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

from sfumato._checks import one_of, positive_integer, within
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
    def describe(self, population: int, unit: str = "example") -> str:
        """Its description in a statement; `unit` is the name of a single participant."""

    def remark(self, unit: str = "example") -> str:
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
        positive_integer(batch_size=self.batch_size, remedy="give the expected number of examples in a step")

    def probability(self, population: int) -> float:
        return self.batch_size / population

    def expected_batch_size(self, population: int) -> int:
        return self.batch_size

    def with_batch_size(self, batch_size: int) -> Self:
        return replace(self, batch_size=batch_size)

    def facts(self, population: int) -> dict[str, object]:
        return {"batch_size": self.batch_size, "sampling_probability": self.probability(population)}


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
        remedy = "give a smaller batch, or the whole data set for full-batch steps"
        within(None, population - 1, batch_size=self.batch_size, remedy=remedy)

    def largest_batch(self, population: int) -> int:
        return population - 1

    def describe(self, population: int, unit: str = "example") -> str:
        return f"each {unit} drawn into each step with probability {self.probability(population):.6g}"


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
        largest = positive_integer(largest=self.largest, remedy=remedy)
        within(self.batch_size, None, largest=largest, remedy=remedy)

    def largest_batch(self, population: int) -> int:
        return min(self.largest, population - 1)

    @property
    def padded_size(self) -> int:
        """The number kept in a truncated step."""
        return self.largest

    def facts(self, population: int) -> dict[str, object]:
        return {**super().facts(population), "largest_batch": self.largest}

    def describe(self, population: int, unit: str = "example") -> str:
        return (
            f"each {unit} drawn into each step with probability {self.probability(population):.6g}, at most "
            f"{self.largest} of them, the number of {unit}s being public"
        )

    def remark(self, unit: str = "example") -> str:
        return (
            f"Each step drew {unit}s at random and kept at most {self.largest} of them. The number of {unit}s in the "
            "data is taken as public."
        )


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
        return 1.0

    def expected_batch_size(self, population: int) -> int:
        return population

    def with_batch_size(self, batch_size: int) -> Self:
        return self

    def gap(self, population: int) -> int:
        return 1

    def describe(self, population: int, unit: str = "example") -> str:
        return f"every {unit} in every step"


Assignment = Literal["random", "position"]
ASSIGNMENTS = ("random", "position")


@dataclass(frozen=True, kw_only=True)
class FixedOrder(BatchedParticipation):
    """Each example belongs to one of ceil(N / B) bins. In step t (from 0), bin t modulo their number takes part.

    Args:
        batch_size: B, the expected number of participants of a step. Sums are divided by it, however many a bin holds.
        assignment: how the bin of an example is decided.
            "random": an independent uniform draw from the secret run key for each record number.
            "position": bin i holds the records i B to (i + 1) B of the file.

    **Guarantee.** The number of steps between two participations of one unit equals the number of bins. With "random",
    the bins of other records do not depend on whether one record is present. With "position" they do, because all later
    records would move up; it is therefore covered only for zero-out adjacency, where every record keeps its place.

    >>> FixedOrder(batch_size=300).bins(1000)
    4
    """

    name = "fixed-order"

    assignment: Assignment = "random"

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(ASSIGNMENTS, assignment=self.assignment)

    def check(self, population: int) -> None:
        within(None, population, batch_size=self.batch_size, remedy=f"give at most the {population} examples")

    def bins(self, population: int) -> int:
        """ceil(N / B)."""
        return -(-population // self.batch_size)

    def gap(self, population: int) -> int:
        return self.bins(population)

    @property
    def adjacencies(self) -> tuple[str, ...]:
        """With "position", only zero-out."""
        return ("zero-out",) if self.assignment == "position" else tuple(ADJACENCIES)

    def probability(self, population: int) -> float:
        return 1 / self.bins(population)

    def facts(self, population: int) -> dict[str, object]:
        decided = {"random": "a secret draw", "position": "place in the file"}
        return {"order": decided[self.assignment], "batch_size": self.batch_size, "bins": self.bins(population)}

    def describe(self, population: int, unit: str = "example") -> str:
        bins = self.bins(population)
        if self.assignment == "position":
            return f"each {unit} in every {bins}th step, by its place in the file, whose order is public"
        return f"each {unit} in every {bins}th step, beginning with one of the first {bins} drawn in secret"

    def remark(self, unit: str = "example") -> str:
        order = "in an order that was drawn once in secret"
        if self.assignment == "position":
            order = "by its place in the file, whose order is taken as public"
        return (
            f"Each {unit} took part at regular intervals, {order}. The guarantee depends on the noise alone, not on "
            "secrecy of who took part."
        )


@dataclass(frozen=True, kw_only=True)
class CyclicPoisson(BatchedParticipation):
    """Step t (from 0) draws each example of group t modulo `groups` independently (arXiv 2306.08153).

    Args:
        batch_size: B, the expected number of participants of a step; at most N / groups.
        groups: the number of groups. The group of each example is an independent uniform draw from the secret run key
            for its record number.

    **Guarantee.** Other records' groups and draws do not depend on whether one record is present. The number of steps
    between two participations of one unit is a multiple of `groups`.

    >>> CyclicPoisson(batch_size=50, groups=8).turn_probability(1000)
    0.4
    """

    name = "cyclic"

    groups: int

    def __post_init__(self) -> None:
        super().__post_init__()
        positive_integer(groups=self.groups, remedy="give at least as many groups as the mechanism has bands")

    def check(self, population: int) -> None:
        remedy = "give a smaller batch or fewer groups: each group must hold a batch"
        within(None, population // self.groups, batch_size=self.batch_size, remedy=remedy)

    def turn_probability(self, population: int) -> float:
        """b B / N: the probability that an example takes part in a step of its own group."""
        return self.groups * self.batch_size / population

    @property
    def longest_band(self) -> int:
        """The number of groups, so that a band ends before a group's next turn."""
        return self.groups

    def largest_batch(self, population: int) -> int:
        return population // self.groups

    def facts(self, population: int) -> dict[str, object]:
        return {**super().facts(population), "groups": self.groups}

    def describe(self, population: int, unit: str = "example") -> str:
        return (
            f"each {unit} in one of {self.groups} groups drawn in secret, which take turns, and drawn into each step "
            f"of its group with probability {self.turn_probability(population):.6g}"
        )

    def remark(self, unit: str = "example") -> str:
        article = "An" if unit == "example" else "A"
        return (
            f"The {unit}s were split into groups by secret draws, and the groups took turns. {article} {unit} took "
            "part in some of its group's turns, by chance. The guarantee depends on this sampling as well as on the "
            "noise."
        )
