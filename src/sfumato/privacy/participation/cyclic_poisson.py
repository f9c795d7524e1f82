"""Cyclic Poisson sampling: groups take turns, and each step draws from one group only."""

from __future__ import annotations

from dataclasses import dataclass

from sfumato._checks import SfumatoError, positive_integer
from sfumato.privacy.participation.participation import BatchedParticipation


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
        positive_integer("groups", self.groups, remedy="give at least as many groups as the mechanism has bands")

    def check(self, population: int) -> None:
        """Refuse a population that this rule cannot draw from."""
        if self.groups * self.batch_size > population:
            raise SfumatoError(
                f"batch_size times groups must not exceed the number of examples, "
                f"got {self.batch_size} x {self.groups} of {population}",
                "give a smaller batch or fewer groups",
            )

    def turn_probability(self, population: int) -> float:
        """b B / N: the probability that an example takes part in a step of its own group."""
        return self.groups * self.batch_size / population

    @property
    def longest_band(self) -> int:
        """The number of groups, so that a band ends before a group's next turn."""
        return self.groups

    def largest_batch(self, population: int) -> int:
        """The size of a whole group."""
        return population // self.groups

    def facts(self, population: int) -> dict[str, object]:
        """The facts of Poisson sampling, and the number of groups."""
        return {**super().facts(population), "groups": self.groups}

    def describe(self, population: int, one: str = "example") -> str:
        """Its description in a statement; `one` is the name of a single participant."""
        return (
            f"each {one} in one of {self.groups} groups drawn in secret, which take turns, and drawn into each step "
            f"of its group with probability {self.turn_probability(population):.6g}"
        )

    def remark(self, one: str = "example") -> str:
        """The same in plain words."""
        article = "An" if one == "example" else "A"
        return (
            f"The {one}s were split into groups by secret draws, and the groups took turns. {article} {one} took part "
            "in some of its group's turns, by chance. The guarantee depends on this sampling as well as on the noise."
        )
