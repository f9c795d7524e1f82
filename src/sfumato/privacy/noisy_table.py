"""Releases from test records: a noisy confusion matrix, for published figures, and a private choice."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

from sfumato._checks import SfumatoError, positive, positive_integer, whole_number, within

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
        remedy = f"give {LEAST_EPSILON:g} or more, such as 1: at less, the noise would hide any number of test records"
        within(LEAST_EPSILON, None, epsilon=positive(epsilon=self.epsilon, remedy=remedy), remedy=remedy)
        positive_integer(classes=self.classes)

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
        return cls(**data)


def check_counts(what: str, counts: Sequence[int], number: int) -> None:
    """Refuse anything but this many counts of records: a mean or another number would move by more than 1."""
    if len(counts) != number:
        raise SfumatoError(f"there are {len(counts)} {what}s for {number}", f"give a {what} for each")
    for count in counts:
        whole_number(least=0, most=None, optional=False, remedy="count records: a mean is no count", **{what: count})


@dataclass(frozen=True, kw_only=True)
class PrivateChoice:
    """Permute-and-flip (McKenna and Sheldon 2020, arXiv 2010.12603) over counts of correct labels.

    Each candidate r has its own coin, which shows heads with probability exp(-epsilon (max_j score_j - score_r)). The
    choice is uniform among the candidates whose coins show heads; the best candidate's coin always does. This is the
    distribution of permute-and-flip, which takes the first heads in random order. At equal epsilon, its choice is never
    worse in expectation than that of the exponential mechanism.

    Args:
        epsilon: the cost of the choice for a held-out record.
        candidates: the number of candidates, fixed in advance or public.

    **Guarantee.** The choice is (epsilon, 0)-differentially private for one held-out record under add-or-remove, for
    scores that are counts of records with some property. It holds for any candidates, if they do not depend on held-out
    records and nothing but the choice is released (no score, and no coin of another candidate).

    Proof. An added record raises each score by 0 or 1 and lowers none. Let E_r be independent exponential variables of
    rate epsilon. The events score_r + E_r >= max_j score_j are independent and have the probabilities of the coins.
    Because exponential variables are memoryless, the excess over max_j score_j has the same distribution for each such
    r, independently of the coins. So the choice is distributed as argmax_r (score_r + E_r) (Ding et al. 2021, arXiv
    2105.07260). Fix r and the E_j of all other candidates, and let m = max_{j != r} (score_j + E_j) - score_r. Then r
    is chosen with probability min(1, exp(-epsilon m)). The added record moves the maximum by 0 to 1 and score_r by 0 to
    1. So it moves m by at most 1 either way, and the probability by a factor of at most e^epsilon either way. The same
    holds for the mean over the E_j. If scores could move in opposite directions, m could move by 2, at a cost of 2
    epsilon. For such scores the mechanism is usually stated, with epsilon / 2.

    A held-out record is not in any training part, so a person pays the larger of the run's epsilon and this one. A
    replaced record is one removed and one added, and costs 2 epsilon. A person with g held-out records pays g epsilon.

    >>> choice = PrivateChoice(epsilon=0.1, candidates=3)
    >>> [round(chance, 3) for chance in choice.probabilities([900, 890, 850])]
    [0.814, 0.184, 0.003]
    """

    epsilon: float
    candidates: int

    def __post_init__(self) -> None:
        positive(epsilon=self.epsilon, remedy="give the privacy budget of the choice, a number such as 1")
        positive_integer(candidates=self.candidates, remedy="give the number of candidates")

    def exponents(self, scores: Sequence[int]) -> tuple[Fraction, ...]:
        """epsilon (max_j score_j - score_r) of each candidate, exactly. Its coin has heads probability exp(-exponent).

        **Guarantee.** Sensitivity 1: scores that are not whole numbers are refused.
        """
        check_counts("score", scores, self.candidates)
        best = max(scores)
        return tuple(Fraction(self.epsilon) * (best - score) for score in scores)

    def probabilities(self, scores: Sequence[int]) -> list[float]:
        """The probability that each candidate is chosen, to float64 accuracy. Keep it as secret as the scores.

        P(r) = p_r E[1 / (1 + H_r)], where p_r is the probability that the coin of r shows heads, and H_r is the number
        of other coins that do.
        """
        import numpy as np

        heads = np.exp([-float(exponent) for exponent in self.exponents(scores)])
        chances = []
        for place, head in enumerate(heads):
            law = np.ones(1)
            for other in np.delete(heads, place):
                law = np.convolve(law, [1 - other, other])
            chances.append(float(head * (law / np.arange(1, len(law) + 1)).sum()))
        return chances
