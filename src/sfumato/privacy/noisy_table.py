"""A confusion matrix of test records, released with noise. Published figures are computed from it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from sfumato._checks import SfumatoError, positive, positive_integer

LEAST_EPSILON = 1e-6
"""At a smaller epsilon the noise would hide any realistic number of records."""
MOST_PREDICTIONS = 10
"""With more classes the table counts right and wrong predictions of each class, instead of each prediction."""


@dataclass(frozen=True, kw_only=True)
class NoisyTable:
    """Noisy counts of the test records by class and prediction.

    Each count gets two-sided geometric noise (Ghosh et al. 2009, arXiv 0811.2841): P(k) is proportional to
    e^(-epsilon |k|) over all whole numbers k. The number of records is released only as the sum of the noisy counts.

    Args:
        epsilon: the cost for a unit.
        classes: K. Up to `MOST_PREDICTIONS` classes have a column for each prediction. More have two, for wrong and for
            right predictions: the noise in K counts of a class would hide its recall.

    **Guarantee.** The counts are (epsilon, 0)-differentially private for one unit of the test part under add-or-remove,
    if at most one record of each unit is counted and the model does not depend on the unit. Proof: adding the unit
    changes one count by 1, and the probability of any noise changes by a factor of at most e^epsilon. The cells and
    their number follow from the classes alone. Whatever is computed from the counts costs nothing more. Replacing a
    unit is one removal and one addition and costs 2 epsilon. If the unit is an example, a person with g records in the
    test part pays g epsilon.

    >>> [NoisyTable(epsilon=0.5, classes=classes).shape for classes in (3, 100)]
    [(3, 3), (100, 2)]
    """

    epsilon: float
    classes: int

    def __post_init__(self) -> None:
        positive("epsilon", self.epsilon, remedy="give what the figures may cost a test record, such as 1")
        if self.epsilon < LEAST_EPSILON:
            raise SfumatoError(
                f"epsilon is {self.epsilon!r}, at which the noise would hide any number of test records",
                f"give {LEAST_EPSILON:g} or more, such as 1",
            )
        positive_integer("classes", self.classes)

    @property
    def shape(self) -> tuple[int, int]:
        """Classes, and predictions or wrong and right."""
        return self.classes, self.classes if self.classes <= MOST_PREDICTIONS else 2

    @property
    def cells(self) -> int:
        """The number of counts."""
        return math.prod(self.shape)

    @property
    def variance(self) -> float:
        """The variance of the noise in one count: 2 q / (1 - q)^2 with q = e^-epsilon."""
        return 2 * math.exp(-self.epsilon) / math.expm1(-self.epsilon) ** 2

    @property
    def description(self) -> str:
        """What is released, in the words of a statement."""
        return f"a table of {self.cells} counts with two-sided geometric noise of epsilon {self.epsilon:g}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data that `from_dict` reads back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> NoisyTable:
        """The table that `to_dict` wrote."""
        try:
            return cls(**data)
        except TypeError:
            raise SfumatoError(
                "the noisy table has missing or unknown fields", "restore the run's own record"
            ) from None
