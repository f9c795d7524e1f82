"""The rule that picks between drawing records and drawing users."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from sfumato import SfumatoError
from sfumato.privacy import UserRule, user_rule


@pytest.fixture(scope="module")
def rule() -> UserRule:
    """Every record in every step, where both plans have a closed form."""
    return user_rule(users=2000, records=9, gradients=18_000, steps=5, epsilon=2.0, delta=1e-5)


def test_both_ways_meet_the_same_promise_and_the_figures_are_the_formulas(rule):
    examples, users = rule.examples, rule.users
    for row in (examples, users):
        assert 1.99 < row.plan.epsilon() <= 2.0
        assert row.plan.units == row.plan.users == 2000
    assert (examples.plan.population, examples.plan.expected_batch_size) == (18_000, 18_000)
    assert (users.plan.population, users.plan.expected_batch_size) == (2000, 2000)
    assert examples.orthogonal == examples.parallel == examples.plan.noise_multiplier / 18_000
    assert users.parallel == users.plan.noise_multiplier / 2000 == pytest.approx(examples.parallel, rel=1e-4)
    assert users.orthogonal == pytest.approx(users.plan.noise_multiplier / (2000 * 3))
    assert users.mean_noise == pytest.approx(math.sqrt(users.orthogonal * users.parallel))
    assert rule.better.drawn == "users"
    taken = next(row for row in rule.rows() if row["taken"])
    assert taken["drawn"] == rule.better.drawn
    assert taken["between"] == min(row["between"] for row in rule.rows())
    assert sum(row["taken"] for row in rule.rows()) == 1
    assert {"noise_multiplier", "batch_size", "epsilon", "orthogonal", "parallel"} <= set(taken)


def test_the_geometric_mean_decides_and_both_cosines_make_it_sure(rule):
    def with_users(orthogonal: float, parallel: float) -> UserRule:
        examples = replace(rule.examples, orthogonal=1.0, parallel=1.0)
        return UserRule(examples=examples, users=replace(rule.users, orthogonal=orthogonal, parallel=parallel))

    for orthogonal, parallel, taken, sure in (
        (0.5, 1.9, "users", False),
        (0.5, 2.1, "examples", False),
        (0.5, 0.9, "users", True),
        (1.1, 3.0, "examples", True),
    ):
        found = with_users(orthogonal, parallel)
        assert (found.better.drawn, found.is_certain) == (taken, sure)


def test_fewer_kept_records_than_every_user_could_have_are_shared_out_among_all(rule):
    several = user_rule(users=2000, records=9, gradients=6000, population=6000, steps=5, epsilon=2.0, delta=1e-5)
    assert several.users.plan == rule.users.plan
    assert several.users.orthogonal == pytest.approx(several.users.parallel / math.sqrt(3))


def test_gradients_for_less_than_one_user_are_refused():
    with pytest.raises(SfumatoError, match="gradients must be at least the 100 of one user, got 20"):
        user_rule(users=2000, records=100, gradients=20, steps=20, epsilon=2.0, delta=1e-5)
    with pytest.raises(SfumatoError, match="records must be at least 1"):
        user_rule(users=2000, records=0, gradients=20, steps=20, epsilon=2.0, delta=1e-5)
