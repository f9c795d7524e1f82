"""Drifting Poisson sampling: two groups of records whose shares of a step rise and fall in turn, period by period."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from sfumato._checks import SfumatoError, one_of, positive_integer, shortened, within
from sfumato.privacy.participation.rules import BatchedParticipation

Shape = Literal["linear", "cosine"]
SHAPES = ("linear", "cosine")
Counts = tuple[tuple[float, int], ...]
"""Sampling probabilities, each with the number of steps in which it applies."""


@dataclass(frozen=True, kw_only=True)
class DriftingPoisson(BatchedParticipation):
    """Step t (from 0) draws each example of group g independently, with probability B s_g(t) / N_g.

    s_1(t) is group 1's expected share of a step, and s_0(t) = 1 - s_1(t) is group 0's. The distribution of participants
    moves from one group to the other and back, like day and night (Zhu et al. 2022, "Diurnal or Nocturnal?"; Shejwalkar
    et al. 2022, periodic distribution shift).

    Args:
        batch_size: B, the expected number of participants of every step; at most the smaller of N_0 and N_1.
        period: P, the number of steps from one maximum of group 0's share to the next, at least 2.
        shape: "linear": s_1(t) = 1 - |1 - 2 (t mod P) / P|. "cosine": s_1(t) = (1 - cos(2 pi t / P)) / 2.
        sizes: N_0 and N_1, declared constants whose sum is N.
        named: the names of group 1: a record belongs to it if its own group, or else its class, is one of these. A run
            needs them; a plan alone does not.

    **Guarantee.** A record's probabilities are functions of its own group and of declared constants, so who else takes
    part does not depend on whether the record is present. A record's group must be a function of that record alone.

    >>> rule = DriftingPoisson(batch_size=60, period=4, sizes=(300, 100))
    >>> [rule.probabilities(step) for step in range(4)]
    [(0.2, 0.0), (0.1, 0.3), (0.0, 0.6), (0.1, 0.3)]
    """

    name = "drifting"

    period: int
    shape: Shape = "linear"
    sizes: tuple[int, int]
    named: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        remedy = "give the number of steps of a period, such as 100"
        within(2, None, drift=positive_integer(drift=self.period, remedy=remedy), remedy=remedy)
        one_of(SHAPES, drift_shape=self.shape)
        if not isinstance(self.sizes, tuple) or len(self.sizes) != 2:
            raise SfumatoError(
                f"sizes must be two numbers, got {shortened(self.sizes)}", "give the sizes of the two groups"
            )
        for size in self.sizes:
            positive_integer(sizes=size, remedy="give how many examples each of the two groups has")
        if not isinstance(self.named, tuple) or not all(isinstance(name, str) and name for name in self.named):
            raise SfumatoError(
                f"named must be a tuple of names, got {shortened(self.named)}", "give the names of classes or groups"
            )

    def check(self, population: int) -> None:
        if sum(self.sizes) != population:
            raise SfumatoError(
                f"the two groups of a drift must make up all {population} examples, got {self.sizes[0]} and "
                f"{self.sizes[1]}",
                "declare how many examples each of them has",
            )
        remedy = "give at most the smaller of the two groups: all of a group take part when it makes up the whole step"
        within(None, min(self.sizes), batch_size=self.batch_size, remedy=remedy)

    def probabilities(self, step: int) -> tuple[float, float]:
        """The probabilities that a record of group 0, and one of group 1, takes part in a step."""
        phase = step % self.period
        return self._probabilities(min(phase, self.period - phase))

    def counts(self, steps: int) -> tuple[Counts, Counts]:
        """For each group, its non-zero probabilities in the first `steps` steps, in decreasing order."""
        half, (whole, rest) = self.period // 2, divmod(steps, self.period)
        group_counts: tuple[dict[float, int], dict[float, int]] = ({}, {})
        for phase in range(min(half, steps - 1) + 1):
            mirrored = self.period - phase
            count = whole + (phase < rest)
            if 0 < phase < mirrored:
                count += whole + (mirrored < rest)
            for group, probability in zip(group_counts, self._probabilities(phase), strict=True):
                group[probability] = group.get(probability, 0) + count
        first, second = (
            tuple(sorted(((q, count) for q, count in group.items() if q and count), reverse=True))
            for group in group_counts
        )
        return first, second

    def largest_batch(self, population: int) -> int:
        return min(self.sizes)

    def facts(self, population: int) -> dict[str, object]:
        names = f" ({', '.join(self.named)})" if self.named else ""
        peaks = [f"0 to {self.batch_size / size:.4g}" for size in self.sizes]
        return {
            "batch_size": self.batch_size,
            "drift": f"{self.shape}, {self.period} steps",
            "second_group": f"{self.sizes[1]} examples{names}, each with probability {peaks[1]}",
            "all_others": f"{self.sizes[0]} examples, each with probability {peaks[0]}",
        }

    def describe(self, population: int, unit: str = "example") -> str:
        lines = {"linear": "by straight lines", "cosine": "as a cosine does"}[self.shape]
        others, group = (f"{self.batch_size / size:.6g}" for size in self.sizes)
        named = ", ".join(self.named) or "the second group"
        return (
            f"each of {self.sizes[1]} {unit}s ({named}) drawn into step t with probability {group} s(t) and each "
            f"of {self.sizes[0]} others with probability {others} (1 - s(t)), where s rises from 0 to 1 and falls "
            f"again {lines} in every {self.period} steps"
        )

    def remark(self, unit: str = "example") -> str:
        article = "An" if unit == "example" else "A"
        return (
            f"The {unit}s form two groups that took turns as the larger part of the training. {article} {unit} took "
            "part in some of the steps, by chance. The guarantee depends on this sampling as well as on the noise, and "
            f"is that of the less protected group. Exchanging {article.lower()} {unit} for one of the other group "
            "counts as two changes."
        )

    def _probabilities(self, phase: int) -> tuple[float, float]:
        """The probabilities at `phase` steps from the nearest end of a period, the same on the way up and down."""
        linear = self.shape == "linear"
        share = 2 * phase / self.period if linear else math.sin(math.pi * phase / self.period) ** 2
        first, second = self.batch_size * (1 - share) / self.sizes[0], self.batch_size * share / self.sizes[1]
        return min(1.0, first), min(1.0, second)
