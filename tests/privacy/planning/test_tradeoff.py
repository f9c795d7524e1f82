"""The frontier never exceeds its budget and wastes little of it; its figures mean what they are called."""

import math
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sfumato import PrivacyPlan, SfumatoError
from sfumato.privacy.planning.tradeoff import Frontier, Point, frontier, recommended_point, steps_by_rule

CIFAR = {"examples": 50_000, "epsilon": 8.0, "delta": 1e-5}


def small(**changed) -> Frontier:
    """A frontier that takes no time."""
    asked = {"examples": 2000, "batch_size": 500, "epsilon": 2.0, "delta": 1e-4, "noise_multipliers": (4.0, 8.0)}
    return frontier(**{**asked, **changed})


# -- the promise -------------------------------------------------------------------------------------------------------


@given(
    batch=st.integers(20, 2000),
    epsilon=st.floats(0.3, 2.0),
    sigma=st.floats(1.5, 30.0),
    delta=st.sampled_from([1e-4, 1e-6]),
    epochs=st.none() | st.floats(2.0, 200.0),
)
@example(batch=500, epsilon=12.0, sigma=2.0, delta=1e-6, epochs=None)
@example(batch=2000, epsilon=0.5, sigma=0.8, delta=1e-4, epochs=None)
@settings(max_examples=2, deadline=None)
def test_no_point_exceeds_the_budget_and_one_step_more_would(batch, epsilon, sigma, delta, epochs):
    asked = {"batch_size": batch, "epsilon": epsilon, "delta": delta, "epochs": epochs}
    try:
        found = small(**asked, noise_multipliers=(sigma,))
    except SfumatoError as error:
        assert "already exceeded by one step" in str(error)
        one = PrivacyPlan.calibrate(examples=2000, batch_size=batch, steps=1, noise_multiplier=sigma, delta=delta)
        assert one.epsilon() > epsilon
        return
    assert found.epsilon == epsilon
    for point in found.points:
        assert (point.plan.population, point.plan.expected_batch_size, point.plan.delta) == (2000, batch, delta)
        assert point.plan.epsilon(delta) <= epsilon
    (grid,) = [point.plan for point in found.points if point.rule is None]
    assert grid.noise_multiplier == sigma
    assert grid.epsilon(steps=grid.steps + max(1, grid.steps // 5000)) > epsilon * 0.99999
    if epochs is not None:
        assert found.recommended.plan.expected_epochs <= epochs + 1e-9


def test_the_steps_of_a_full_batch_have_a_closed_form():
    """T = (sigma mu)^2, whose mu is Balle and Wang's: Phi(-eps/mu + mu/2) - e^eps Phi(-eps/mu - mu/2) = delta."""
    found = small(batch_size=2000, noise_multipliers=(5.0, 20.0, 80.0))
    mu = found.limit / 2000

    def phi(x: float) -> float:
        return 0.5 * math.erfc(-x / math.sqrt(2))

    assert phi(-2.0 / mu + mu / 2) - math.exp(2.0) * phi(-2.0 / mu - mu / 2) == pytest.approx(1e-4, rel=1e-6)
    for point in found.points:
        if point.rule is None:
            assert point.plan.steps == math.floor((point.plan.noise_multiplier * mu) ** 2)
    assert found.plateau is None


# -- what is lost ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cifar() -> Frontier:
    return frontier(**CIFAR, batch_size=4096, noise_multipliers=(1.0, 1.41, 2.0, 4.0, 8.0))


def test_the_frontier_of_cifar_rises_and_flattens_towards_the_full_batch(cifar):
    assert [(point.plan.noise_multiplier, point.plan.steps) for point in cifar.points if point.rule is None] == [
        (1.0, 197),
        (1.41, 588),
        (2.0, 1412),
        (4.0, 6370),
        (8.0, 26_222),
    ]
    for before, after in pairwise(cifar.points):
        assert before.plan.noise_multiplier < after.plan.noise_multiplier
        assert before.plan.steps < after.plan.steps
        assert before.signal_to_noise_step > after.signal_to_noise_step
        assert cifar.share(before) < cifar.share(after) < 1
    for point in cifar.points:
        # The central limit gives N mu / (sigma sqrt(e^(1/sigma^2) - 1)); what is finite falls a little short of it.
        sigma = point.plan.noise_multiplier
        predicted = 1 / (sigma * math.sqrt(math.expm1(1 / sigma**2)))
        assert predicted * (0.99 if point.plan.steps > 2000 else 0.85) < cifar.share(point) < predicted
    assert cifar.plateau is cifar.recommended
    assert cifar.share(cifar.recommended) == pytest.approx(0.954, abs=1e-3)


def test_the_table_of_the_documentation_is_this_one(cifar):
    page = (Path(__file__).resolve().parents[3] / "docs" / "tuning.md").read_text("utf-8")
    for point in cifar.points:
        plan, share = point.plan, f"{100 * cifar.share(point):.1f}%"
        row = f"| {plan.noise_multiplier:g} | {plan.steps:,} | {plan.expected_epochs:,.1f} |"
        assert f"{row} {point.signal_to_noise_step:,.0f} | {point.signal_to_noise_run:,.0f} | {share} |" in page


# -- rules of thumb ----------------------------------------------------------------------------------------------------


def test_the_rule_marks_its_steps(cifar):
    (marked,) = [point.plan for point in cifar.points if point.rule]
    assert marked.steps == 2500
    assert marked.noise_multiplier == pytest.approx(2.5759, abs=2e-4)
    assert cifar.recommended.rule == "steps"


@pytest.mark.parametrize(
    ("epsilon", "batch", "steps"),
    [(8.0, 4096, 2500), (8.0, 50_000, 2500), (8.0, 2048, 2500), (8.0, 512, 10_000), (2.0, 4096, 625), (1e-6, 4096, 1)],
)
def test_steps_by_rule(epsilon, batch, steps):
    assert steps_by_rule(epsilon, batch, 50_000) == steps


def test_epochs_cut_the_steps_only_where_the_rule_does_not_fit():
    free = small(batch_size=1000, epsilon=8.0)
    assert (free.recommended.rule, free.recommended.plan.steps) == ("steps", 5000)
    assert small(batch_size=1000, epsilon=8.0, epochs=2500.0) == free
    tight = small(batch_size=1000, epsilon=8.0, epochs=100.4)
    assert (tight.recommended.rule, tight.recommended.plan.steps) == ("epochs", 200)
    assert tight.recommended.plan.noise_multiplier < free.recommended.plan.noise_multiplier
    assert free.recommended in tight.points


def test_of_several_batch_sizes_the_largest_or_the_one_that_fits_the_epochs():
    def single(batch_size: int) -> Frontier:
        plan = PrivacyPlan.calibrate(examples=50_000, batch_size=batch_size, steps=9, noise_multiplier=9.0, delta=1e-5)
        return Frontier(epsilon=8.0, limit=1.0, points=(Point(plan=plan, rule="steps"),))

    frontiers = [single(batch_size) for batch_size in (16_384, 512, 4096, 1024)]
    for epochs, taken in ((None, 16_384), (1000.0, 16_384), (150.0, 4096)):
        assert recommended_point(frontiers, epochs).plan.expected_batch_size == taken
    assert recommended_point(frontiers[:2], 1.0).plan.expected_batch_size == 512, "nearest to 2,048, in proportion"


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"epsilon": 0.0}, "epsilon must be positive"),
        ({"delta": 1.0}, "delta must lie"),
        ({"batch_size": 2001}, "batch_size must be at most"),
        ({"examples": 0}, "examples must be at least 1"),
        ({"epochs": -1.0}, "epochs must be positive"),
        ({"epochs": 0.2}, "epochs must allow at least one step, got 0.2"),
        ({"noise_multipliers": (1e-9,)}, "noise_multiplier must lie between"),
        ({"noise_multipliers": (float("nan"),)}, "noise_multiplier must be a finite number"),
        ({"noise_multipliers": (0.3,), "epsilon": 0.5}, "already exceeded by one step"),
    ],
)
def test_refusals(changed, match):
    with pytest.raises(SfumatoError, match=match) as error:
        small(**changed)
    assert error.value.remedy
