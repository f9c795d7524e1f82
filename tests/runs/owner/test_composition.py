"""What several runs on the same data cost together: composed by the accountant, for one unit at a time."""

from __future__ import annotations

from dataclasses import replace

import dp_accounting
import pytest

from sfumato import FullBatch, Gaussian, PrivacyPlan
from sfumato.privacy import FixedOrder
from sfumato.runs.owner import composition, sentences


def test_plans_of_both_adjacencies_are_composed_for_zero_out(plan):
    one = replace(plan(), participation=FixedOrder(batch_size=100))  # a unit takes part in five of 50 steps
    by_position = FixedOrder(batch_size=100, assignment="position")
    other = replace(one, participation=by_position, adjacency="zero-out")
    both = replace(one, participation=FullBatch(), steps=10).epsilon()
    for many in ([one, other], [other, one]):
        assert composition.joint_cost(many) == (pytest.approx(both), 1e-5)
        assert composition.adjacency_of(many) == "zero-out"
    assert "under zero-out adjacency, if all were planned in advance" in sentences.earlier_runs_note([one], other)
    assert "under add-or-remove adjacency" in sentences.earlier_runs_note([one], one)
    assert "under zero-out adjacency" in sentences.earlier_runs_note([other], other)
    assert (composition.adjacency_of([one, one]), composition.adjacency_of([other])) == ("add-or-remove", "zero-out")


def test_together_is_one_long_run_for_equal_plans(plan):
    epsilon, delta = composition.joint_cost([plan(50), plan(100)])
    assert epsilon == pytest.approx(plan(150).epsilon(), rel=1e-3)
    assert delta == 1e-5


def test_together_is_more_than_each_and_less_than_the_sum(plan):
    parts = [plan(50), plan(30, sigma=1.5), plan(80, batch_size=50)]
    epsilon, _ = composition.joint_cost(parts)
    assert max(part.epsilon() for part in parts) < epsilon < sum(part.epsilon() for part in parts)


def test_what_the_owner_is_told_holds_at_the_largest_delta(plan):
    strict = replace(plan(30), delta=1e-7)
    both = plan(80).epsilon(1e-5)
    for order in ([strict, plan(50)], [plan(50), strict]):
        assert composition.joint_cost(order) == (pytest.approx(both, rel=1e-3), 1e-5)


def test_many_different_plans_are_still_bounded(plan):
    parts = [plan(10, sigma=2.0 + 0.1 * place) for place in range(10)]
    full = PrivacyPlan(
        population=1000, participation=FullBatch(), mechanism=Gaussian(noise_multiplier=9.0), steps=2, delta=1e-5
    )
    epsilon, delta = composition.joint_cost([*parts, full])
    exact = full.loss.composed_with(*(part.loss for part in parts)).epsilon(delta, grid=1e-3)
    assert exact <= epsilon <= sum(part.epsilon(delta / 11, grid=1e-3) for part in (*parts, full))
    assert epsilon < 1.2 * exact, "Renyi DP adds them up with little loss"


def test_full_batch_plans_are_composed_exactly_however_many_they_are(plan):
    whole = [
        PrivacyPlan(
            population=1000 + place,
            participation=FullBatch(),
            mechanism=Gaussian(noise_multiplier=9.0 + place),
            steps=1 + place,
            delta=1e-5,
        )
        for place in range(12)
    ]
    noise = sum(one.steps / one.noise_multiplier**2 for one in whole) ** -0.5
    assert composition.joint_cost(whole)[0] == pytest.approx(dp_accounting.get_epsilon_gaussian(noise, 1e-5), rel=1e-9)
    sampled = [plan(10, sigma=2.0 + 0.1 * place) for place in range(7)]
    mixed = composition.joint_cost([*whole, *sampled])[0]
    assert mixed == pytest.approx(
        whole[0].loss.composed_with(*(one.loss for one in (*whole[1:], *sampled))).epsilon(1e-5), rel=1e-3
    )


def test_many_plans_that_are_each_free_at_delta_are_not_free_together(plan):
    """Each may fail with a chance of delta, so all of them with that of many."""
    parts = [plan(1, sigma=9000.0 + place, batch_size=999) for place in range(9)]
    assert {part.epsilon(1e-4) for part in parts} == {0.0}
    assert min(part.loss.delta(0) for part in parts) > 2e-5
    epsilon, _ = composition.joint_cost([replace(part, delta=1e-4) for part in parts])
    assert epsilon > 0
