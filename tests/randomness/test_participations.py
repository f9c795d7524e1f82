"""Draws of fixed orders, cyclic, drifting, truncated Poisson: gaps, uniform bins, coins' laws, cuts without favour."""

import math
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sfumato import RunKey, Sampler, SfumatoError
from sfumato.privacy.participation import (
    CyclicPoisson,
    DriftingPoisson,
    FixedOrder,
    Participation,
    Poisson,
    TruncatedPoisson,
)

LIMIT, TAIL = 5.5, 1e-6


def sampler(rule: Participation, population: int, *, records: int | None = None, seed: int = 0, groups: Any = None):
    """What the draws read of a plan; which mechanism goes with a rule is the theorems' matter."""
    plan: Any = SimpleNamespace(
        participation=rule,
        population=population,
        sampling_probability=rule.probability(population),
        expected_batch_size=rule.expected_batch_size(population),
    )
    key = RunKey.from_seed(seed)
    return Sampler(plan, key, records=population if records is None else records, groups=groups)


def table(rule: Participation, population: int, steps: int, **options: Any) -> np.ndarray:
    """bool (steps, records): who took part when."""
    drawing = sampler(rule, population, **options)
    found = np.zeros((steps, drawing.records), bool)
    for step in range(steps):
        indices = drawing.draw(step)
        assert indices.dtype == np.int64
        assert (np.diff(indices) > 0).all()
        found[step, indices] = True
    return found


def z_of(successes: float, trials: int, probability: float) -> float:
    return (successes - trials * probability) / math.sqrt(trials * probability * (1 - probability))


def uniform(cells: np.ndarray, count: int) -> bool:
    return bool(stats.chisquare(np.bincount(cells, minlength=count)).pvalue > TAIL)


# -- fixed order ---------------------------------------------------------------------------------------------------


@given(
    population=st.integers(1, 60),
    batch_size=st.integers(1, 60),
    more=st.integers(-30, 30),
    assignment=st.sampled_from(["random", "position"]),
    seed=st.integers(0, 99),
)
def test_participations_of_a_record_are_exactly_as_far_apart_as_there_are_bins(
    population, batch_size, more, assignment, seed
):
    rule = FixedOrder(batch_size=min(batch_size, population), assignment=assignment)
    bins = -(-population // rule.batch_size)
    drawn = table(rule, population, 3 * bins, records=max(0, population + more), seed=seed)
    for record, taken in enumerate(drawn.T):
        steps = np.flatnonzero(taken)
        if assignment == "position" and record >= bins * rule.batch_size:
            assert not len(steps)
        else:
            assert len(steps) == 3
            assert np.diff(steps).tolist() == [bins, bins]


def bins_of(records: int, bins: int, seed: int = 0, batch_size: int = 10) -> np.ndarray:
    """Each record's bin; 10 bins of 10 unless told."""
    return table(FixedOrder(batch_size=batch_size), batch_size * bins, bins, records=records, seed=seed).argmax(0)


def test_bins_are_uniform_and_independent():
    found, bins = bins_of(40_000, 7), 7
    assert uniform(found, bins)
    for far in (1, 2, bins, 10, 1000):
        assert uniform(found[far:] * bins + found[:-far], bins**2), far
    assert uniform(np.arange(len(found)) % bins * bins + found, bins**2)
    assert uniform(bins_of(40_000, 7, seed=1) * bins + found, bins**2)
    assert not uniform(np.where(found == 3, 2, found), bins)
    assert not uniform((np.arange(len(found)) % bins) * (bins + 1) % bins**2, bins**2)


@pytest.mark.parametrize("rule", [FixedOrder(batch_size=20), CyclicPoisson(batch_size=20, groups=3)])
def test_another_record_moves_nobody_else(rule):
    few, more = (table(rule, 100, 40, records=records) for records in (99, 100))
    assert (few == more[:, :99]).all()


def test_by_position_bins_follow_each_other():
    drawing = sampler(FixedOrder(batch_size=4, assignment="position"), 10, records=14)
    assert [drawing.draw(step).tolist() for step in range(4)] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9, 10, 11],
        [0, 1, 2, 3],
    ]
    short = sampler(FixedOrder(batch_size=4, assignment="position"), 10, records=5)
    assert [short.draw(step).tolist() for step in range(3)] == [[0, 1, 2, 3], [4], []]


# -- cyclic Poisson ------------------------------------------------------------------------------------------------

CYCLIC = CyclicPoisson(batch_size=20, groups=3)  # of 100: a turn's probability is 0.6


def test_a_record_takes_part_in_its_group_s_turns_alone():
    turns = table(CYCLIC, 100, 3 * 40).reshape(40, 3, 100).any(0)
    assert (turns.sum(0) == 1).all()


def test_the_coins_that_come_up_are_those_below_the_turn_s_probability():
    key, groups = RunKey.from_seed(0), RunKey.from_seed(0).generator("groups", 0).integers(7, size=100_000)
    drawing = sampler(CyclicPoisson(batch_size=50, groups=7), 1000, records=100_000)
    for step in (0, 3, 17):
        group = np.flatnonzero(groups == step % 7)
        coins = key.generator("sampling", step).random(len(group))
        assert drawing.draw(step).tolist() == group[coins < 0.35].tolist()


# -- drifting Poisson ----------------------------------------------------------------------------------------------

DRIFTING = DriftingPoisson(batch_size=30, period=4, sizes=(60, 40))  # of 100
SECOND = np.arange(100) % 5 < 2


@given(gone=st.integers(0, 99), seed=st.integers(0, 99))
@settings(max_examples=10)
def test_a_record_of_either_group_moves_nobody_else_s_coin(gone, seed):
    whole = table(DRIFTING, 100, 12, groups=SECOND, seed=seed)
    moved = SECOND.copy()
    moved[gone] = not moved[gone]  # another record in its place
    other = table(DRIFTING, 100, 12, groups=moved, seed=seed)
    rest = np.arange(100) != gone
    assert (whole[:, rest] == other[:, rest]).all()
    few = table(DRIFTING, 100, 12, records=99, groups=SECOND[:99], seed=seed)
    assert (few == whole[:, :99]).all()


def test_the_coins_that_come_up_are_those_below_the_own_group_s_probability():
    key, drawing = RunKey.from_seed(0), sampler(DRIFTING, 100, groups=SECOND)
    for step in (0, 1, 2, 7):
        coins = key.generator("sampling", step).random(100)
        first, second = DRIFTING.probabilities(step)
        came = [record for record in range(100) if coins[record] < (second if SECOND[record] else first)]
        assert drawing.draw(step).tolist() == came


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        (None, r"groups must be 100 truth values, got object of shape \(\)"),
        (SECOND[:99], r"groups must be 100 truth values, got bool of shape \(99,\)"),
        (SECOND.astype(int), "groups must be 100 truth values, got int64"),
    ],
)
def test_groups_that_are_none_are_refused(groups, words):
    with pytest.raises(SfumatoError, match=words):
        sampler(DRIFTING, 100, groups=groups)


# -- truncated Poisson ---------------------------------------------------------------------------------------------


@given(population=st.integers(2, 60), batch=st.integers(1, 59), more=st.integers(0, 20), seed=st.integers(0, 99))
@settings(max_examples=25)
def test_a_cut_leaves_some_of_those_who_came_up_and_small_batches_whole(population, batch, more, seed):
    batch = min(batch, population - 1)
    rule = TruncatedPoisson(batch_size=batch, largest=batch + more)
    whole = table(Poisson(batch_size=batch), population, 20, seed=seed)
    drawn = table(rule, population, 20, seed=seed)
    assert (drawn <= whole).all()
    assert (drawn.sum(1) == np.minimum(whole.sum(1), batch + more)).all()


def test_of_those_who_came_up_each_subset_is_equally_likely():
    steps, records, largest = 12_000, 6, 3
    rule = TruncatedPoisson(batch_size=3, largest=largest)
    drawn = table(rule, records, steps)
    whole = table(Poisson(batch_size=3), records, steps)
    for size in (4, 5, 6):
        for came in combinations(range(records), size):
            rows = drawn[(whole.sum(1) == size) & whole[:, came].all(1)]
            subsets = list(combinations(came, largest))
            counts = [(rows[:, subset].all(1)).sum() for subset in subsets]
            assert len(rows) > 120
            assert sum(counts) == len(rows)
            assert stats.chisquare(counts).pvalue > TAIL, came


def test_cuts_of_one_step_say_nothing_of_another_s():
    rule = TruncatedPoisson(batch_size=150, largest=150)
    drawn = table(rule, 200, 2000)
    off = drawn - drawn.mean()
    scale = drawn.mean() * (1 - drawn.mean()) * math.sqrt(2000)
    assert np.abs((off[1:] * off[:-1]).sum(0)).max() / scale < LIMIT
    assert np.abs(z_of(drawn.sum(0), 2000, drawn.mean())).max() < LIMIT


# -- all of them ---------------------------------------------------------------------------------------------------

RULES = [
    FixedOrder(batch_size=20),
    FixedOrder(batch_size=20, assignment="position"),
    CYCLIC,
    TruncatedPoisson(batch_size=20, largest=22),
]


@pytest.mark.parametrize("rule", RULES)
def test_a_replayed_step_has_the_same_participants_in_any_order(rule):
    one, again = sampler(rule, 100), sampler(rule, 100)
    drawn = [one.draw(step).tolist() for step in range(20)]
    assert [again.draw(step).tolist() for step in reversed(range(20))] == drawn[::-1]


@pytest.mark.parametrize("records", [0, 99, 101])
def test_a_cut_takes_n_as_public_so_there_are_n_records(records):
    with pytest.raises(SfumatoError, match=f"of 100 declared examples there are {records}"):
        sampler(RULES[-1], 100, records=records)
