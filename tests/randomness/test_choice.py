"""The draw of a private choice follows its law and no other one; its coins are exact."""

import math
from collections import Counter
from fractions import Fraction

import pytest
from scipy import stats

from sfumato import RunKey, SfumatoError
from sfumato.privacy import PrivateChoice
from sfumato.randomness import choose
from sfumato.randomness.choice import Bits

KEYS = [RunKey.from_seed(seed) for seed in range(3000)]


def fits(counts: list[int], law: list[float]) -> bool:
    """Whether a chi-square test accepts the law."""
    assert min(law) * sum(counts) > 20
    return stats.chisquare(counts, [chance * sum(counts) for chance in law]).pvalue > 1e-6


@pytest.mark.parametrize(
    ("scores", "epsilon"), [([5, 5], 1.0), ([9, 7, 8], 0.5), ([100, 90, 96, 70], 0.05), ([3, 0, 0, 0, 0, 0], 0.7)]
)
def test_choices_have_their_law_and_no_other(scores, epsilon):
    counts = Counter(choose(PrivateChoice(epsilon=epsilon, candidates=len(scores)), scores, key) for key in KEYS)
    found = [counts[place] for place in range(len(scores))]
    assert fits(found, PrivateChoice(epsilon=epsilon, candidates=len(scores)).probabilities(scores))
    for wrong in (0.5 * epsilon, 1.5 * epsilon):
        law = PrivateChoice(epsilon=wrong, candidates=len(scores)).probabilities(scores)
        assert len(set(scores)) == 1 or not fits(found, law)


@pytest.mark.parametrize("exponent", [0, "1/7", 1, "13/5"], ids=str)
def test_coins_show_heads_with_e_to_the_minus_x(exponent):
    bits, draws = Bits(KEYS[0]), 12_000
    exponent = Fraction(exponent)
    heads = sum(bits.coin_exp(exponent) for _ in range(draws))
    chance = math.exp(-exponent)
    assert abs(heads - draws * chance) <= 5 * math.sqrt(draws * chance * (1 - chance))
    assert exponent == 0 or abs(heads - draws * math.exp(-exponent * 4 / 5)) > 5 * math.sqrt(draws) / 2


@pytest.mark.parametrize("bound", [1, 3, 8, 13])
def test_whole_numbers_are_uniform(bound):
    bits = Bits(KEYS[1])
    counts = Counter(bits.below(bound) for _ in range(300 * bound))
    assert set(counts) == set(range(bound))
    assert bound == 1 or stats.chisquare([counts[number] for number in range(bound)]).pvalue > 1e-6


def test_bits_are_the_whole_key_s_and_go_on():
    bits = Bits(RunKey(bytes(32)))
    first = [bits.below(2**256) for _ in range(50)]
    assert len(set(first)) == 50
    again, other = Bits(RunKey(bytes(32))), Bits(RunKey(bytes(31) + b"\1"))
    assert [again.below(2**256) for _ in range(50)] == first
    assert other.below(2**256) != first[0]


def test_scores_are_checked_before_anything_is_drawn():
    with pytest.raises(SfumatoError, match="a mean is no count"):
        choose(PrivateChoice(epsilon=1.0, candidates=2), [0.9, 0.8], KEYS[0])
