"""The table of published figures: what it costs, and what its layout depends on."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from sfumato import SfumatoError
from sfumato.privacy import NoisyTable, PrivateChoice

TABLE = NoisyTable(epsilon=0.1, classes=3)


def test_the_variance_is_that_of_the_law():
    law = [math.exp(-TABLE.epsilon * abs(number)) for number in range(-2000, 2001)]
    variance = sum(weight * number**2 for weight, number in zip(law, range(-2000, 2001), strict=True)) / sum(law)
    assert TABLE.variance == pytest.approx(variance, rel=1e-6)


def test_it_is_read_back_and_refused_when_damaged():
    assert NoisyTable.from_dict(TABLE.to_dict()) == TABLE
    for odd in ({"epsilon": 1.0}, {**TABLE.to_dict(), "bins": 3}):
        with pytest.raises(TypeError):
            NoisyTable.from_dict(odd)
    for wrong in ({"epsilon": 0.0}, {"epsilon": 1e-200}, {"epsilon": math.inf}, {"classes": 0}):
        with pytest.raises(SfumatoError):
            replace(TABLE, **wrong)


# -- a private choice --------------------------------------------------------------------------------------------------

EPSILONS = (0.1, 0.7, 2.0)


def permuted_and_flipped(scores: Sequence[int], epsilon: float) -> list[float]:
    """McKenna and Sheldon's algorithm as it is printed, over all orders: the first whose coin shows heads."""
    heads = [math.exp(epsilon * (score - max(scores))) for score in scores]
    found = [0.0] * len(scores)
    orders = list(itertools.permutations(range(len(scores))))
    for order in orders:
        before = 1 / len(orders)
        for place in order:
            found[place] += before * heads[place]
            before *= 1 - heads[place]
    return found


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("scores", [[3], [2, 2], [0, 5], [7, 1, 4], [3, 3, 2, 0], [9, 8, 8, 8, 1]])
def test_its_law_is_permute_and_flip_s(scores, epsilon):
    found = PrivateChoice(epsilon=epsilon, candidates=len(scores)).probabilities(scores)
    assert sum(found) == pytest.approx(1)
    assert found == pytest.approx(permuted_and_flipped(scores, epsilon), rel=1e-12)


def largest_ratio(candidates: int, epsilon: float, most: int = 3) -> float:
    """The largest log-ratio of a choice's probabilities over all score vectors and all records that could be added."""
    choice = PrivateChoice(epsilon=epsilon, candidates=candidates)
    worst = 0.0
    for scores in itertools.product(range(most + 1), repeat=candidates):
        if min(scores) > 0:
            continue  # only differences matter
        before = np.log(choice.probabilities(scores))
        for added in itertools.product((0, 1), repeat=candidates):
            after = np.log(choice.probabilities([score + one for score, one in zip(scores, added, strict=True)]))
            worst = max(worst, float(np.abs(after - before).max()))
    return worst


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize(("candidates", "most"), [(2, 6), (3, 3), (4, 2)])
def test_one_record_moves_no_probability_by_more_than_epsilon(candidates, most, epsilon):
    worst = largest_ratio(candidates, epsilon, most)
    assert worst <= epsilon * (1 + 1e-9)
    assert worst > 0.5 * epsilon  # and the bound is no idle one


def test_two_candidates_reach_epsilon():
    """Far apart, the worse one's probability is about e^(-epsilon gap) / 2: nothing of epsilon is left unused."""
    assert largest_ratio(2, 0.7, 12) == pytest.approx(0.7, rel=1e-3)


def sharper(self: PrivateChoice, scores: Sequence[int]) -> tuple[Fraction, ...]:
    return tuple(Fraction(self.epsilon) * (max(scores) - score) * Fraction(11, 10) for score in scores)


def squared(self: PrivateChoice, scores: Sequence[int]) -> tuple[Fraction, ...]:
    return tuple(Fraction(self.epsilon) * (max(scores) - score) ** 2 for score in scores)


def by_the_mean(self: PrivateChoice, scores: Sequence[int]) -> tuple[Fraction, ...]:
    """A mean of right answers over the records that are there, times a number of records that is not theirs."""
    return tuple(Fraction(self.epsilon) * (max(scores) - score) / (max(scores) + 1) * 8 for score in scores)


@pytest.mark.parametrize("bug", [sharper, squared, by_the_mean], ids=lambda bug: bug.__name__)
def test_a_planted_bug_would_be_found(monkeypatch, bug):
    monkeypatch.setattr(PrivateChoice, "exponents", bug)
    assert largest_ratio(3, 0.7) > 0.7 * 1.05


def test_scores_that_go_apart_would_cost_twice_as_much():
    choice = PrivateChoice(epsilon=0.7, candidates=2)
    before, after = choice.probabilities([9, 3]), choice.probabilities([8, 4])
    assert math.log(after[1] / before[1]) == pytest.approx(1.4, rel=0.02)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: PrivateChoice(epsilon=0, candidates=2), "epsilon must be positive"),
        (lambda: PrivateChoice(epsilon=1, candidates=0), "candidates must be at least 1"),
        (lambda: PrivateChoice(epsilon=1, candidates=2).exponents([1]), "there are 1 scores for 2"),
        (lambda: PrivateChoice(epsilon=1, candidates=2).exponents([1, 0.5]), "score must be a whole number"),
        (lambda: PrivateChoice(epsilon=1, candidates=2).exponents([1, -1]), "score must be at least 0"),
        (lambda: PrivateChoice(epsilon=1, candidates=2).exponents([1, True]), "score must be a whole number"),
    ],
)
def test_what_is_no_choice_is_refused(call, words):
    with pytest.raises(SfumatoError, match=words):
        call()
