"""A table of counts of held-out records, released with noise, from which figures of a model may be published."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from fractions import Fraction
from typing import Any

from sfumato._checks import SfumatoError, positive, positive_integer
from sfumato.privacy.choice import PrivateChoice

FINE = (0.0, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 1.0)
"""Where bins of confidence begin and end: narrow near 1, where most records of a good model are."""
COARSE = (0.0, 0.5, 0.8, 0.95, 0.99, 1.0)
LAYOUTS = ((True, FINE), (True, COARSE), (False, FINE), (False, COARSE))
"""Whether predictions are told apart, and the bins, the richest first."""
LEAST_EPSILON = 1e-6
"""Below it the noise hides any number of records that there could be."""
MOST_CELLS = 20_000
NOISE_IN_COUNT = 0.01
"""The richest table is taken whose noise in the count of all records is at most so large a share of them."""
TEMPERATURES = tuple(4.0 ** (place / 48) for place in range(-48, 49))
"""From which a temperature is chosen: from a quarter to four, each 3% above the one before."""
TEMPERATURE_SHARE = Fraction(1, 4)
"""Of epsilon, for the choice of a temperature."""
FEWEST = 800
"""Epsilon times records from which on a temperature is chosen: then mean confidence misses accuracy by 1% or less."""


@dataclass(frozen=True, kw_only=True)
class NoisyTable:
    """How many records of the test part have which class, which prediction and how much confidence, with noise.

    Two releases: a temperature by which the model's logits are divided, where one is chosen, and the counts of
    the model with that temperature. Each count has two-sided geometric noise (Ghosh et al. 2009, arXiv 0811.2841):
    P(k) is proportional to e^(-epsilon |k|) over all whole numbers k. How many records there are is not released
    but as the sum of noisy counts.

    Args:
        epsilon: what both cost a record of the test part together.
        classes: K.
        predictions: whether the table has a row for each prediction; else one for wrong ones and one for right ones.
        edges: of the bins of confidence, from 0 to 1; one that stands on an edge is in the bin above.
        temperature: whether a temperature is chosen.

    **Guarantee.** Together they are (epsilon, 0)-differentially private for one record of the test part under
    add-or-remove, if the model does not depend on that part. Proof: a record is in one cell, so adding it moves one
    count by 1, and noise of this law changes in probability by a factor of at most e^epsilon; the cells, their number
    and the bins are fixed beforehand from public facts. The temperature is chosen at a quarter of epsilon
    (`choice`), the noise has what is left, and epsilons of releases that are made one after the other add up, exactly:
    both are fractions. Whatever is computed from them afterwards costs nothing. A replaced record is one removed and
    one added and pays 2 epsilon; someone with g records in the test part pays g epsilon.

    >>> table = NoisyTable(epsilon=0.5, classes=2, predictions=True, edges=COARSE, temperature=True)
    >>> table.shape, table.temperature_epsilon + table.noise_epsilon
    ((2, 2, 5), Fraction(1, 2))
    """

    epsilon: float
    classes: int
    predictions: bool
    edges: tuple[float, ...]
    temperature: bool

    def __post_init__(self) -> None:
        positive("epsilon", self.epsilon, remedy="give what the figures may cost a test record, such as 1")
        if self.epsilon < LEAST_EPSILON:
            raise SfumatoError(
                f"epsilon is {self.epsilon!r}, at which the noise hides any number of test records",
                f"give {LEAST_EPSILON:g} or more, such as 1",
            )
        positive_integer("classes", self.classes)
        edges = tuple(self.edges)
        object.__setattr__(self, "edges", edges)
        if len(edges) < 2 or edges[0] != 0 or edges[-1] != 1 or list(edges) != sorted(set(edges)):
            raise SfumatoError(f"edges must rise from 0 to 1, got {edges}", "give some such as (0, 0.5, 1)")

    @classmethod
    def by_rule(cls, epsilon: float, *, classes: int, records: int) -> NoisyTable:
        """The richest table that the noise leaves of use.

        Args:
            epsilon, classes: as above.
            records: about how many the test part has, from public facts: the exact number is private.

        >>> [NoisyTable.by_rule(epsilon, classes=10, records=15_000).shape for epsilon in (0.1, 1.0)]
        [(10, 2, 5), (10, 10, 10)]
        """
        positive("epsilon", epsilon, remedy="give what the figures may cost a test record, such as 1")
        chosen = epsilon * records >= FEWEST
        found = [
            cls(epsilon=epsilon, classes=classes, predictions=each or classes < 3, edges=edges, temperature=chosen)
            for each, edges in LAYOUTS
        ]
        for one in found:
            noise = math.sqrt(one.cells * one.variance)
            if one.cells <= MOST_CELLS and noise <= NOISE_IN_COUNT * records:
                return one
        return found[-1]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Classes, predictions (or wrong and right), bins."""
        return self.classes, self.classes if self.predictions else 2, len(self.edges) - 1

    @property
    def cells(self) -> int:
        """How many counts there are."""
        return math.prod(self.shape)

    @property
    def temperature_epsilon(self) -> Fraction:
        """What the choice of a temperature costs."""
        return Fraction(self.epsilon) * TEMPERATURE_SHARE if self.temperature else Fraction(0)

    @property
    def noise_epsilon(self) -> Fraction:
        """What the counts cost: the epsilon of their noise."""
        return Fraction(self.epsilon) - self.temperature_epsilon

    @property
    def variance(self) -> float:
        """Of the noise in one count: 2 q / (1 - q)^2 with q = e^-epsilon, of the epsilon of the noise."""
        kept = math.exp(-float(self.noise_epsilon))
        return 2 * kept / math.expm1(-float(self.noise_epsilon)) ** 2

    @property
    def choice(self) -> PrivateChoice:
        """How the temperature is chosen, among `TEMPERATURES` by the scores of `scores_of`.

        **Guarantee.** (temperature_epsilon, 0)-differentially private: a record moves each score by at most 1, some up
        and others down, for which permute-and-flip has twice the epsilon that it is given (`PrivateChoice`): here half.
        """
        return PrivateChoice(epsilon=float(self.temperature_epsilon / 2), candidates=len(TEMPERATURES))

    @property
    def words(self) -> str:
        """What is released, for a statement."""
        noise = f"a table of {self.cells} counts with two-sided geometric noise"
        if not self.temperature:
            return f"{noise} of epsilon {float(self.noise_epsilon):g}"
        return (
            f"a temperature chosen by permute-and-flip at epsilon {float(self.temperature_epsilon):g}, and {noise} of "
            f"epsilon {float(self.noise_epsilon):g}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data that `from_dict` reads back."""
        return asdict(self) | {"edges": list(self.edges)}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> NoisyTable:
        """The table that `to_dict` wrote."""
        names = {one.name for one in fields(cls)}
        if not isinstance(data, dict) or set(data) != names:
            raise SfumatoError("the noisy table has missing or unknown fields", "restore the run's own record")
        known: dict[str, Any] = {**data, "edges": tuple(data["edges"])}
        return cls(**known)


GRAIN = 1 << 20
"""Confidences are read in these parts of 1 where a temperature is chosen, so that their sums are exact."""


def scores_of(gaps: list[int]) -> list[int]:
    """How well each temperature does, as `PrivateChoice` takes it: the larger the better, the worst has 0.

    Args:
        gaps: of each temperature, the sum over records of confidence less 1 where the prediction is right, in parts
            of `GRAIN`: what mean confidence misses accuracy by, times the number of records.

    **Guarantee.** Sensitivity 1, up to a number that all scores share and that no choice depends on: a record moves a
    sum by at most `GRAIN`, so its size in whole units by at most 1.

    >>> scores_of([3 * GRAIN, -GRAIN // 2, -5 * GRAIN])
    [2, 5, 0]
    """
    missed = [abs(gap) // GRAIN for gap in gaps]
    return [max(missed) - one for one in missed]
