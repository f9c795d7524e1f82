"""The noise in counts follows its law and no other one."""

import math
from collections import Counter
from fractions import Fraction

import pytest
from scipy import stats

from sfumato import RunKey, SfumatoError
from sfumato.privacy import NoisyTable
from sfumato.randomness import noisy_counts
from sfumato.randomness.choice import Bits, two_sided_geometric

TABLE = NoisyTable(epsilon=1.0, classes=2)
DRAWS = 4000


def fits(found: list[int], epsilon: float) -> bool:
    """Whether a chi-square test accepts the two-sided geometric law of this epsilon."""
    most = next(k for k in range(1, 100) if DRAWS * math.exp(-epsilon * k) / 2 < 40)
    kept, tail = math.exp(-epsilon), math.exp(-epsilon * most) / (1 + math.exp(-epsilon))
    law = [tail, *((1 - kept) / (1 + kept) * kept ** abs(k) for k in range(-most + 1, most)), tail]
    counts = Counter(max(-most, min(most, one)) for one in found)
    observed = [counts[k] for k in range(-most, most + 1)]
    return stats.chisquare(observed, [DRAWS * share for share in law]).pvalue > 1e-6


@pytest.mark.parametrize("epsilon", [0.1, 0.75, 3.0])
def test_noise_has_its_law_and_no_other(epsilon):
    bits = Bits(RunKey.from_seed(3))
    found = [two_sided_geometric(bits, Fraction(epsilon)) for _ in range(DRAWS)]
    assert fits(found, epsilon)
    for wrong in (epsilon / 2, epsilon * 1.25, epsilon * 2):
        assert not fits(found, wrong)


def test_every_count_has_noise_of_the_table_s_epsilon():
    keys = [RunKey.from_seed(seed) for seed in range(DRAWS // TABLE.cells)]
    found = [one - 7 for key in keys for one in noisy_counts(TABLE, [7] * TABLE.cells, key)]
    assert fits(found, TABLE.epsilon)
    assert not fits(found, 2 * TABLE.epsilon)


def test_counts_are_checked_before_anything_is_drawn():
    for wrong in ([1] * 3, [1.0] * 4, [-1] * 4, [True] * 4):
        with pytest.raises(SfumatoError):
            noisy_counts(TABLE, wrong, RunKey.from_seed(0))


def test_draws_are_those_of_the_whole_key():
    first, again, other = (noisy_counts(TABLE, [0] * 4, RunKey(bytes(31) + bytes([last]))) for last in (0, 0, 1))
    assert first == again != other
