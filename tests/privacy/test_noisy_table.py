"""The table of published figures: what it costs, and what its layout depends on."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato import SfumatoError
from sfumato.privacy import NoisyTable
from sfumato.privacy.noisy_table import FINE, GRAIN, MOST_CELLS, scores_of

TABLE = NoisyTable(epsilon=0.1, classes=3, predictions=True, edges=FINE, temperature=True)


@given(epsilon=st.floats(1e-3, 50), temperature=st.booleans())
def test_both_releases_cost_epsilon_exactly_and_no_more(epsilon, temperature):
    table = replace(TABLE, epsilon=epsilon, temperature=temperature)
    assert table.temperature_epsilon + table.noise_epsilon == Fraction(epsilon)
    assert bool(table.temperature_epsilon) == temperature
    if temperature:  # scores go apart, for which permute-and-flip costs twice its own epsilon
        assert 2 * Fraction(table.choice.epsilon) == table.temperature_epsilon


def test_the_variance_is_that_of_the_law():
    epsilon = float(TABLE.noise_epsilon)
    law = [math.exp(-epsilon * abs(number)) for number in range(-2000, 2001)]
    variance = sum(weight * number**2 for weight, number in zip(law, range(-2000, 2001), strict=True)) / sum(law)
    assert TABLE.variance == pytest.approx(variance, rel=1e-6)


@given(
    gaps=st.lists(st.integers(-50 * GRAIN, 50 * GRAIN), min_size=2, max_size=6),
    moves=st.lists(st.integers(-GRAIN, GRAIN), min_size=6, max_size=6),
)
def test_a_record_moves_no_difference_of_scores_by_more_than_two(gaps, moves):
    before = scores_of(gaps)
    after = scores_of([gap + move for gap, move in zip(gaps, moves, strict=False)])
    for one in range(len(gaps)):
        for other in range(len(gaps)):
            assert abs((before[one] - before[other]) - (after[one] - after[other])) <= 2


def test_the_layout_follows_from_noise_and_public_facts():
    def shape(epsilon, classes=10, records=15_000):
        return NoisyTable.by_rule(epsilon, classes=classes, records=records).shape

    assert shape(3.0) == (10, 10, 10)
    assert shape(0.1) == (10, 2, 5)
    assert shape(0.5, classes=2, records=360) == (2, 2, 5)
    assert NoisyTable.by_rule(0.5, classes=2, records=360).predictions  # wrong or right says the same of two classes
    assert math.prod(shape(3.0, classes=1000, records=10**7)) <= MOST_CELLS
    assert not NoisyTable.by_rule(0.1, classes=2, records=1000).temperature
    assert NoisyTable.by_rule(1.0, classes=2, records=1000).temperature


def test_it_is_read_back_and_refused_when_damaged():
    assert NoisyTable.from_dict(TABLE.to_dict()) == TABLE
    with pytest.raises(SfumatoError, match="missing or unknown fields"):
        NoisyTable.from_dict({"epsilon": 1.0})
    for wrong in (
        {"epsilon": 0.0},
        {"epsilon": 1e-200},
        {"epsilon": math.inf},
        {"classes": 0},
        {"edges": (0.0, 0.5)},
        {"edges": (0, 1, 1)},
    ):
        with pytest.raises(SfumatoError):
            replace(TABLE, **wrong)


def test_groups_share_one_table_and_its_cost():
    table = replace(TABLE, groups=4)
    assert (table.cells, table.shape) == (4 * TABLE.cells, TABLE.shape)
    assert (table.variance, table.noise_epsilon) == (TABLE.variance, TABLE.noise_epsilon)
    assert NoisyTable.from_dict(table.to_dict()) == table
    assert "groups" not in TABLE.to_dict()
    assert f"a table of {table.cells} counts of 4 groups with" in table.description
    alone, apart = (NoisyTable.by_rule(1.0, classes=2, records=2000, groups=groups) for groups in (1, 10))
    assert apart.shape < alone.shape, "more cells have more noise together"
    with pytest.raises(SfumatoError, match="groups"):
        replace(TABLE, groups=0)
