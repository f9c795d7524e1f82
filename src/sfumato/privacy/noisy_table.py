"""A table of counts of held-out records, released with noise. Published figures are computed from it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from fractions import Fraction
from typing import Any

from sfumato._checks import SfumatoError, positive, positive_integer
from sfumato.privacy.choice import PrivateChoice

FINE = (0.0, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 1.0)
"""The edges of the confidence bins: narrow near 1, where a good model has most records."""
COARSE = (0.0, 0.5, 0.8, 0.95, 0.99, 1.0)
LAYOUTS = ((True, FINE), (True, COARSE), (False, FINE), (False, COARSE))
"""Candidate layouts, the richest first: whether each prediction has its own row, and the bins."""
LEAST_EPSILON = 1e-6
"""At a smaller epsilon the noise would hide any realistic number of records."""
MOST_CELLS = 20_000
NOISE_IN_COUNT = 0.01
"""The richest layout is chosen for which the noise in the total count is at most this share of the total."""
TEMPERATURES = tuple(4.0 ** (place / 48) for place in range(-48, 49))
"""The candidate temperatures: from a quarter to four, each 3% above the one before."""
TEMPERATURE_SHARE = Fraction(1, 4)
"""The share of epsilon for the choice of the temperature."""
FEWEST = 800
"""A temperature is chosen if epsilon times records is at least this: then mean confidence is within 1% of accuracy."""


@dataclass(frozen=True, kw_only=True)
class NoisyTable:
    """Noisy counts of the test records by class, prediction and confidence, and by group if there are several.

    There are two releases: a temperature by which the model's logits are divided, if one is chosen, and the counts for
    the model with that temperature. Each count gets two-sided geometric noise (Ghosh et al. 2009, arXiv 0811.2841):
    P(k) is proportional to e^(-epsilon |k|) over all whole numbers k. The number of records is released only as the sum
    of the noisy counts.

    Args:
        epsilon: the cost of both releases together for a test record.
        classes: K.
        predictions: whether the table has a row for each prediction; otherwise one for wrong and one for right
            predictions.
        edges: the edges of the confidence bins, from 0 to 1. A confidence on an edge belongs to the bin above.
        temperature: whether a temperature is chosen.
        groups: the number of groups of records that are counted apart; 1 for no groups.

    **Guarantee.** Both releases together are (epsilon, 0)-differentially private for one record of the test part under
    add-or-remove, if the model does not depend on that part. Proof: a record is in one cell (of one group), so adding
    it changes one count by 1, and the probability of any noise changes by a factor of at most e^epsilon. The cells,
    their number, the groups and the bins are fixed in advance from public facts. The temperature is chosen at a quarter
    of epsilon (`choice`), the noise has the rest, and the epsilons of successive releases add up, exactly: both are
    fractions. Whatever is computed from the releases costs nothing more. Replacing a record is one removal and one
    addition and costs 2 epsilon; a person with g records in the test part pays g epsilon.

    >>> table = NoisyTable(epsilon=0.5, classes=2, predictions=True, edges=COARSE, temperature=True)
    >>> table.shape, table.temperature_epsilon + table.noise_epsilon
    ((2, 2, 5), Fraction(1, 2))
    """

    epsilon: float
    classes: int
    predictions: bool
    edges: tuple[float, ...]
    temperature: bool
    groups: int = 1

    def __post_init__(self) -> None:
        positive("epsilon", self.epsilon, remedy="give what the figures may cost a test record, such as 1")
        if self.epsilon < LEAST_EPSILON:
            raise SfumatoError(
                f"epsilon is {self.epsilon!r}, at which the noise would hide any number of test records",
                f"give {LEAST_EPSILON:g} or more, such as 1",
            )
        positive_integer("classes", self.classes)
        positive_integer("groups", self.groups)
        edges = tuple(self.edges)
        object.__setattr__(self, "edges", edges)
        if len(edges) < 2 or edges[0] != 0 or edges[-1] != 1 or list(edges) != sorted(set(edges)):
            raise SfumatoError(f"edges must increase from 0 to 1, got {edges}", "give edges such as (0, 0.5, 1)")

    @classmethod
    def by_rule(cls, epsilon: float, *, classes: int, records: int, groups: int = 1) -> NoisyTable:
        """The richest table that is still useful under its noise.

        Args:
            epsilon, classes, groups: as above.
            records: roughly the number of test records, from public facts; the exact number is private.

        >>> [NoisyTable.by_rule(epsilon, classes=10, records=15_000).shape for epsilon in (0.1, 1.0)]
        [(10, 2, 5), (10, 10, 10)]
        """
        positive("epsilon", epsilon, remedy="give what the figures may cost a test record, such as 1")
        choose_temperature = epsilon * records >= FEWEST
        tables = [
            cls(
                epsilon=epsilon,
                classes=classes,
                predictions=predictions or classes < 3,
                edges=edges,
                temperature=choose_temperature,
                groups=groups,
            )
            for predictions, edges in LAYOUTS
        ]
        for table in tables:
            noise = math.sqrt(table.cells * table.variance)
            if table.cells <= MOST_CELLS and noise <= NOISE_IN_COUNT * records:
                return table
        return tables[-1]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Classes, predictions (or wrong and right), bins, of each group."""
        return self.classes, self.classes if self.predictions else 2, len(self.edges) - 1

    @property
    def cells(self) -> int:
        """The number of counts."""
        return self.groups * math.prod(self.shape)

    @property
    def temperature_epsilon(self) -> Fraction:
        """The cost of choosing the temperature."""
        return Fraction(self.epsilon) * TEMPERATURE_SHARE if self.temperature else Fraction(0)

    @property
    def noise_epsilon(self) -> Fraction:
        """The cost of the counts: the epsilon of their noise."""
        return Fraction(self.epsilon) - self.temperature_epsilon

    @property
    def variance(self) -> float:
        """The variance of the noise in one count: 2 q / (1 - q)^2 with q = e^-epsilon, epsilon that of the noise."""
        ratio = math.exp(-float(self.noise_epsilon))
        return 2 * ratio / math.expm1(-float(self.noise_epsilon)) ** 2

    @property
    def choice(self) -> PrivateChoice:
        """How the temperature is chosen among `TEMPERATURES`, by the scores of `scores_of`.

        **Guarantee.** (temperature_epsilon, 0)-differentially private: a record changes each score by at most 1, some
        up and others down. For such scores permute-and-flip costs twice the epsilon that it is given (`PrivateChoice`),
        so it is given half.
        """
        return PrivateChoice(epsilon=float(self.temperature_epsilon / 2), candidates=len(TEMPERATURES))

    @property
    def description(self) -> str:
        """What is released, in the words of a statement."""
        of = f" of {self.groups} groups" if self.groups > 1 else ""
        noise = f"a table of {self.cells} counts{of} with two-sided geometric noise"
        if not self.temperature:
            return f"{noise} of epsilon {float(self.noise_epsilon):g}"
        return (
            f"a temperature chosen by permute-and-flip at epsilon {float(self.temperature_epsilon):g}, and {noise} of "
            f"epsilon {float(self.noise_epsilon):g}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data that `from_dict` reads back. A table without groups does not name them."""
        data = asdict(self) | {"edges": list(self.edges)}
        return data if self.groups > 1 else {name: data[name] for name in data if name != "groups"}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> NoisyTable:
        """The table that `to_dict` wrote."""
        names = {one.name for one in fields(cls)}
        if not isinstance(data, dict) or {*data, "groups"} != names:
            raise SfumatoError("the noisy table has missing or unknown fields", "restore the run's own record")
        values: dict[str, Any] = {**data, "edges": tuple(data["edges"])}
        return cls(**values)


GRAIN = 1 << 20
"""For the choice of a temperature, confidences are rounded to multiples of 1 / `GRAIN`, so that sums are exact."""


def scores_of(gaps: list[int]) -> list[int]:
    """The score of each temperature for `PrivateChoice`: larger is better, and the worst has 0.

    Args:
        gaps: for each temperature, the sum over records of confidence minus 1 if the prediction is right, in units of
            1 / `GRAIN`: the difference of mean confidence and accuracy times the number of records.

    **Guarantee.** Sensitivity 1, up to a number that all scores share and on which no choice depends: a record changes
    a sum by at most `GRAIN`, so its size in whole units by at most 1.

    >>> scores_of([3 * GRAIN, -GRAIN // 2, -5 * GRAIN])
    [2, 5, 0]
    """
    missed = [abs(gap) // GRAIN for gap in gaps]
    return [max(missed) - one for one in missed]
