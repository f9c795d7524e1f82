"""Participation and mechanism by name: what uses only what, what is refused, and plans that keep their budget."""

import functools

import pytest

from sfumato import FullBatch, Gaussian, PrivacyPlan, SfumatoError
from sfumato.privacy import BandedToeplitz, CyclicPoisson, FixedOrder, Tree, TruncatedPoisson
from sfumato.privacy.factorisation import Workload, optimal_banded
from sfumato.privacy.planning.by_name import OptimalToeplitz, request_by_names

NUMBERS = {"batch_size": 100, "steps": 40, "noise_multiplier": 8.0, "epsilon": 4.0}
PAIRS = {
    "banded": {"mechanism": "banded", "bands": 6},
    "tree": {"mechanism": "tree", "steps_per_tree": 15, "complete_trees": True},
    "by position": {"order": "position"},
    "cyclic": {"participation": "cyclic", "groups": 4},
    "cyclic gaussian": {"participation": "cyclic", "mechanism": "gaussian"},
    "truncated": {"participation": "truncated"},
    "drifting": {"drift": 10, "drift_shape": "cosine", "drift_size": 400},
    "fixed order, independent": {"participation": "fixed-order", "mechanism": "gaussian"},
    "by coins": {},
}


@functools.cache
def calibrated(name: str, unknown: str | None = None, **others: object) -> PrivacyPlan:
    request = request_by_names(examples=1000, momentum=0.9, **PAIRS[name])
    numbers = {key: None if key == unknown else value for key, value in (NUMBERS | others).items()}
    return PrivacyPlan.calibrate(examples=1000, delta=1e-5, **numbers, **request._asdict())


def test_what_is_left_out_follows_from_what_is_given():
    kinds = {
        name: (type(plan.participation), type(plan.mechanism), plan.adjacency)
        for name in PAIRS
        for plan in [calibrated(name, "epsilon")]
    }
    assert kinds["banded"] == (FixedOrder, BandedToeplitz, "add-or-remove")
    assert kinds["tree"] == (FixedOrder, Tree, "add-or-remove")
    assert kinds["by position"] == (FixedOrder, BandedToeplitz, "zero-out")
    assert kinds["cyclic"] == (CyclicPoisson, BandedToeplitz, "add-or-remove")
    assert kinds["truncated"] == (TruncatedPoisson, Gaussian, "zero-out")
    assert kinds["fixed order, independent"] == (FixedOrder, Gaussian, "add-or-remove")
    assert calibrated("cyclic", "epsilon").mechanism.bands == 4
    tree = calibrated("tree", "epsilon").mechanism
    assert (tree.steps_per_tree, tree.completed) == (15, True)
    assert isinstance(request_by_names(examples=10, participation="full-batch").participation, FullBatch)


@pytest.mark.parametrize(
    ("name", "unknown"),
    [
        ("banded", "batch_size"),
        ("banded", "noise_multiplier"),
        ("tree", "steps"),
        ("cyclic", "noise_multiplier"),
        ("truncated", "steps"),
        ("drifting", "steps"),
        ("drifting", "batch_size"),
    ],
)
def test_what_is_unknown_keeps_the_budget_and_nearly_uses_it(name, unknown):
    plan = calibrated(name, unknown)
    assert plan.epsilon() <= NUMBERS["epsilon"]
    assert PrivacyPlan.from_dict(plan.to_dict()) == plan
    for key, value in NUMBERS.items():
        if key not in (unknown, "epsilon"):
            found = plan.expected_batch_size if key == "batch_size" else getattr(plan, key)
            assert found == value
    if unknown == "noise_multiplier":
        assert plan.with_noise(plan.noise_multiplier * 0.995).epsilon() > NUMBERS["epsilon"]
    if (name, unknown) == ("drifting", "steps"):
        assert plan.epsilon(steps=plan.steps + plan.steps // 20 + 1) > NUMBERS["epsilon"]


def test_coefficients_are_the_best_for_the_plan_s_own_steps_and_participations():
    plan = calibrated("banded", "noise_multiplier", steps=30)
    assert plan.mechanism.coefficients == optimal_banded(Workload(steps=30, separation=10, momentum=0.9), 6)
    plan = calibrated("cyclic", "noise_multiplier")  # one unit moves one column of C in a turn
    assert plan.mechanism.coefficients == optimal_banded(Workload(steps=40, separation=40, momentum=0.9), 4)
    longer = calibrated("banded", "steps", epsilon=10.0)
    gap = longer.participation.gap(1000)
    work = Workload(steps=longer.steps, separation=min(gap, longer.steps), momentum=0.9)
    assert longer.mechanism.coefficients == optimal_banded(work, 6)


def planned(number: str, value: int | None, epsilon: float | None = None, **pair: object) -> PrivacyPlan:
    """12 steps on 120 records in 12 bins, where the number is not another one."""
    request = request_by_names(examples=120, momentum=0.9, **pair)
    numbers = {"batch_size": 10, "steps": 12, number: value}
    return PrivacyPlan.calibrate(
        examples=120, delta=1e-5, noise_multiplier=3.0, epsilon=epsilon, **numbers, **request._asdict()
    )


@pytest.mark.parametrize(
    ("pair", "epsilon"), [({"order": "position"}, 2.7), ({"order": "position", "mechanism": "banded", "bands": 8}, 3.5)]
)
def test_no_more_steps_and_no_larger_batch_would_fit_where_the_noise_follows_from_them(pair, epsilon):
    """Every number is tried: the coefficients are other ones for each, and epsilon jumps where a round begins."""
    for number, found, limit in (("steps", "steps", 30), ("batch_size", "expected_batch_size", 40)):
        spent = {value: planned(number, value, **pair).epsilon() for value in range(1, limit + 1)}
        fitting = [value for value in spent if spent[value] <= epsilon]
        assert fitting, f"epsilon {spent[1]} is above {epsilon}"
        assert getattr(planned(number, None, epsilon, **pair), found) == max(fitting)


def test_the_ends_of_later_turns_are_tried_where_epsilon_falls_up_to_them():
    """Noise for just so many steps costs a little less at the end of a turn of 13 steps than where that turn begins."""
    request = request_by_names(examples=50_000, mechanism="banded", momentum=0.9)
    plan = PrivacyPlan.calibrate(
        examples=50_000, delta=1e-6, batch_size=4096, noise_multiplier=36.5, epsilon=3.0, **request._asdict()
    )
    assert plan.epsilon() <= 3
    later = [plan.steps // 13 * 13 + 13 * turn for turn in (1, 2, 3)]
    given = request._asdict() | {"examples": 50_000, "delta": 1e-6, "batch_size": 4096, "noise_multiplier": 36.5}
    assert all(PrivacyPlan.calibrate(steps=steps, **given).epsilon() > 3 for steps in later)


def test_a_cut_follows_from_the_batch():
    plan = calibrated("truncated", "epsilon")
    assert plan.participation.largest == 148  # 100 + 5 sqrt(100 * 0.9), rounded up
    given = request_by_names(examples=1000, participation="truncated", largest_batch=120)
    assert given.participation.with_batch_size(100).largest == 120


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        ({"mechanism": "laplace"}, "mechanism must be one of gaussian, tree, banded"),
        ({"participation": "shuffling"}, "no theorem here covers the participation 'shuffling'"),
        ({"participation": "balls-in-bins"}, "known only by Monte Carlo simulation"),
        ({"mechanism": "tree", "bands": 4}, "bands 4 is for mechanism banded, but mechanism is tree"),
        ({"participation": "poisson", "groups": 4}, "groups 4 is for participation cyclic"),
        ({"mechanism": "banded", "bands": 0}, "bands must be at least 1"),
        ({"mechanism": "banded", "order": "alphabet"}, "order must be one of random, position"),
    ],
)
def test_what_cannot_be_is_refused(asked, problem):
    with pytest.raises(SfumatoError, match=problem):
        request_by_names(examples=1000, **asked)


def test_coins_and_noise_that_remembers_have_no_theorem():
    request = request_by_names(examples=1000, participation="poisson", mechanism="tree")
    numbers = NUMBERS | {"noise_multiplier": None}
    with pytest.raises(SfumatoError, match="no theorem here covers") as refused:
        PrivacyPlan.calibrate(examples=1000, delta=1e-5, **numbers, **request._asdict())
    assert "fixed-order" in refused.value.remedy


def test_coefficients_are_sought_for_so_many_steps_and_no_more():
    pair = request_by_names(examples=1000, participation="fixed-order", mechanism="banded")
    with pytest.raises(SfumatoError) as refused:
        PrivacyPlan.calibrate(examples=1000, batch_size=10, steps=50_001, epsilon=8.0, delta=1e-5, **pair._asdict())
    assert str(refused.value) == (
        "the best coefficients of banded noise are computed for at most 50000 steps, got 50001; use --mechanism "
        "tree or gaussian, or larger batches and fewer steps; in Python a mechanism with coefficients of its own, such "
        "as those of sfumato.privacy.factorisation, takes any number of steps"
    )


def test_where_the_budget_allows_more_steps_than_coefficients_are_sought_for_the_plan_ends_there(monkeypatch):
    monkeypatch.setattr(OptimalToeplitz, "longest", 30)
    plan = planned("steps", None, epsilon=1000.0, participation="fixed-order", mechanism="banded", bands=4)
    assert plan.steps == 30
