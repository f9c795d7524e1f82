"""A private choice among candidates that are there already, by how many held-out records each one labels rightly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from sfumato._checks import SfumatoError, fraction, positive, positive_integer


@dataclass(frozen=True, kw_only=True)
class PrivateChoice:
    """Permute-and-flip (McKenna and Sheldon 2020, arXiv 2010.12603) over counts of right answers.

    Each candidate r has a coin of its own that shows heads with probability exp(-epsilon (max_j score_j - score_r)),
    and the choice is one of those that show heads, each with the same chance. The best one's always does. That is
    permute-and-flip, where the first heads in random order is taken; at equal epsilon its choice is never worse in
    expectation than the exponential mechanism's.

    Args:
        epsilon: what the choice costs a held-out record.
        candidates: how many there are, a number fixed beforehand or public.

    **Guarantee.** The choice is (epsilon, 0)-differentially private for one held-out record under add-or-remove, for
    scores that are counts of records with some property, whatever the candidates are, if these don't depend on
    held-out records and nothing but the choice is released (no score, no other candidate's fate).

    Proof. An added record raises each score by 0 or 1 and lowers none. Let E_r be independent, exponential with rate
    epsilon. By their lack of memory, those r with score_r + E_r >= max_j score_j are those whose coins show heads, and
    what each has above that is alike in law and independent of the coins: so the choice is distributed as
    argmax_r (score_r + E_r) (Ding et al. 2021, arXiv 2105.07260). Fix r and the E_j of all others, and let
    m = max_{j != r} (score_j + E_j) - score_r. Then r is chosen with probability min(1, exp(-epsilon m)). The added
    record moves the maximum by 0 to 1 and score_r by 0 to 1, hence m by at most 1 either way, and the probability by a
    factor of at most e^epsilon either way; so it moves the mean over the E_j. Scores that may go apart (one up, another
    down) would move m by 2 and cost 2 epsilon: for them the mechanism is usually stated with epsilon / 2.

    A held-out record is in no training part, so a person pays the larger of the run's epsilon and this one. A
    replaced record is one removed and one added, and costs 2 epsilon; someone with g held-out records pays g epsilon.

    >>> choice = PrivateChoice(epsilon=0.1, candidates=3)
    >>> [round(chance, 3) for chance in choice.probabilities([900, 890, 850])]
    [0.814, 0.184, 0.003]
    >>> choice.shortfall(0.95)
    40
    """

    epsilon: float
    candidates: int

    def __post_init__(self) -> None:
        positive("epsilon", self.epsilon, remedy="give the privacy budget of the choice, a number such as 1")
        positive_integer("candidates", self.candidates, remedy="give the number of candidates")

    def exponents(self, scores: Sequence[int]) -> tuple[Fraction, ...]:
        """epsilon (max_j score_j - score_r) of each candidate, exactly: its coin shows heads with exp(-exponent).

        **Guarantee.** Sensitivity 1: scores are whole numbers, or refused.
        """
        if len(scores) != self.candidates:
            raise SfumatoError(
                f"there are {len(scores)} scores for {self.candidates} candidates", "give one for each candidate"
            )
        for score in scores:
            if isinstance(score, bool) or not isinstance(score, int) or score < 0:
                raise SfumatoError(
                    f"a score must be a number of right answers, got {score!r}", "count them; a mean is no count"
                )
        best = max(scores)
        return tuple(Fraction(self.epsilon) * (best - score) for score in scores)

    def probabilities(self, scores: Sequence[int]) -> list[float]:
        """With which probability each candidate is chosen, to float64's accuracy. As private as the scores.

        P(r) = p_r E[1 / (1 + H_r)], where p_r is the probability that the coin of r shows heads, and H_r is how many
        others do.
        """
        import numpy as np

        heads = np.exp([-float(exponent) for exponent in self.exponents(scores)])
        chances = []
        for place, own in enumerate(heads):
            law = np.ones(1)
            for other in np.delete(heads, place):
                law = np.convolve(law, [1 - other, other])
            chances.append(float(own * (law / np.arange(1, len(law) + 1)).sum()))
        return chances

    def shortfall(self, confidence: float) -> int:
        """By how many right answers the choice is at most worse than the best candidate, with this probability.

        What is chosen has E_r >= max_j score_j - score_r, and the largest of k exponential variables of rate epsilon
        exceeds x with probability 1 - (1 - e^(-epsilon x))^k.
        """
        fraction("confidence", confidence, remedy="give a probability such as 0.95")
        return math.floor(-math.log(-math.expm1(math.log(confidence) / self.candidates)) / self.epsilon)
