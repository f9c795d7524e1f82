"""What the same run promises of a person with several images, and of a whole group of users."""

import math
from dataclasses import replace

import pytest

from sfumato import FullBatch, Gaussian, PrivacyPlan, SfumatoError
from sfumato.privacy import (
    CyclicPoisson,
    FixedOrder,
    Tree,
    TruncatedPoisson,
    User,
    group_epsilon,
    group_privacy,
    per_person,
    person_epsilon,
)

PLAN = PrivacyPlan.calibrate(examples=100_000, batch_size=1000, steps=500, noise_multiplier=4.0, delta=1e-5)


@pytest.mark.parametrize(("images", "epsilon"), [(1, 0.18758), (4, 0.85253), (16, 4.01794)])
def test_a_person_pays_what_a_user_of_so_many_records_pays(images, epsilon):
    found = per_person(PLAN, images)
    assert found.epsilon == pytest.approx(epsilon, abs=2e-4)
    assert found.by_multiplication >= found.epsilon


def test_without_coins_a_person_is_one_gaussian_of_so_many_vectors():
    full = replace(PLAN, participation=FullBatch(), mechanism=Gaussian(noise_multiplier=100.0))
    assert person_epsilon(full, 5) == pytest.approx(full.with_noise(20.0).epsilon(), rel=1e-9)
    tree = replace(PLAN, participation=FixedOrder(batch_size=1000), mechanism=Tree(noise_multiplier=100.0))
    assert person_epsilon(tree, 5) == pytest.approx(tree.with_noise(20.0).epsilon(), rel=1e-9)


@pytest.mark.parametrize(
    "rule", [CyclicPoisson(batch_size=1000, groups=4), TruncatedPoisson(batch_size=1000, largest=1200)]
)
def test_where_no_theorem_speaks_of_several_records_there_is_multiplication_alone(rule):
    plan = replace(PLAN, participation=rule, adjacency="zero-out", steps=20)
    found = per_person(plan, 3)
    assert found.epsilon is None
    assert 3 * plan.epsilon() < found.by_multiplication < math.inf


def test_group_privacy_is_the_lemma():
    """(k e, (e^(k e) - 1) / (e^e - 1) d) holds where (e, d) does, and no smaller e would do."""
    full = replace(PLAN, participation=FullBatch(), mechanism=Gaussian(noise_multiplier=100.0))
    each = group_privacy(full, 4) / 4

    def delta_of_group(epsilon: float) -> float:
        return full.loss.delta(epsilon) * math.expm1(4 * epsilon) / math.expm1(epsilon)

    assert delta_of_group(each) <= 1e-5
    assert delta_of_group(each * 0.999) > 1e-5
    assert group_privacy(full, 1) == full.epsilon()


def test_only_a_whole_group_that_is_drawn_as_such_has_a_figure_of_its_own():
    groups = replace(PLAN, unit=User(clients=True, users=800_000, grouped=True))
    assert group_epsilon(groups) == PLAN.epsilon()
    assert groups.epsilon() == PLAN.with_noise(2.0).epsilon() > group_epsilon(groups)
    assert group_epsilon(groups, 1e-7) == PLAN.epsilon(1e-7)
    for unit in (User(clients=True), User()):
        assert group_epsilon(replace(PLAN, unit=unit)) is None
    assert group_epsilon(PLAN) is None


def test_plans_for_users_and_odd_numbers_are_refused():
    with pytest.raises(SfumatoError, match="the plan's unit is a user, and so is its epsilon"):
        person_epsilon(replace(PLAN, unit=User()), 3)
    with pytest.raises(SfumatoError, match="images must be at least 1"):
        per_person(PLAN, 0)
    with pytest.raises(SfumatoError, match="images must be at most 100,000"):
        group_privacy(PLAN, 100_001)
