"""The rule that picks between drawing records and drawing users."""

from __future__ import annotations

import math

import pytest

from sfumato import SfumatoError
from sfumato.privacy import UserRule, user_rule


@pytest.fixture(scope="module")
def rule() -> UserRule:
    return user_rule(users=2000, records=9, gradients=360, steps=5, epsilon=2.0, delta=1e-5)


def test_both_ways_meet_the_same_promise_and_the_figures_are_the_formulas(rule):
    examples, users = rule.examples, rule.users
    for row in (examples, users):
        assert 1.99 < row.plan.epsilon() <= 2.0
        assert row.plan.units == row.plan.users == 2000
    assert (examples.plan.population, examples.plan.expected_batch_size) == (18_000, 360)
    assert (users.plan.population, users.plan.expected_batch_size) == (2000, 40)
    assert examples.orthogonal == examples.parallel == examples.plan.noise_multiplier / 360
    assert users.parallel == users.plan.noise_multiplier / 40
    assert users.orthogonal == pytest.approx(users.plan.noise_multiplier / (40 * 3))
    assert users.between == pytest.approx(math.sqrt(users.orthogonal * users.parallel))
    taken = next(row for row in rule.rows() if row["taken"])
    assert taken["drawn"] == rule.take
    assert taken["between"] == min(row["between"] for row in rule.rows())
    assert sum(row["taken"] for row in rule.rows()) == 1
    assert {"noise_multiplier", "batch_size", "epsilon", "orthogonal", "parallel"} <= set(taken)


def test_few_gradients_are_drawn_by_records_and_many_by_users(rule):
    """Charles et al. 2024: clipping per user is better at strong privacy and with much computation."""
    assert rule.take == "examples"
    assert rule.sure
    everything = user_rule(users=2000, records=9, gradients=18_000, steps=5, epsilon=2.0, delta=1e-5)
    assert everything.take == "users"
    assert everything.users.parallel == pytest.approx(everything.examples.parallel, rel=1e-4)


def test_one_record_each_makes_no_difference():
    rule = user_rule(users=50, records=1, gradients=50, steps=20, epsilon=2.0, delta=1e-5)
    assert rule.examples.between == rule.users.between
    assert rule.sure


def test_gradients_for_less_than_one_user_are_refused():
    with pytest.raises(SfumatoError, match="gradients must be at least the 100 of one user, got 20"):
        user_rule(users=2000, records=100, gradients=20, steps=20, epsilon=2.0, delta=1e-5)
    with pytest.raises(SfumatoError, match="records must be at least 1"):
        user_rule(users=2000, records=0, gradients=20, steps=20, epsilon=2.0, delta=1e-5)
