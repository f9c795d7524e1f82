"""A simulated plan keeps the noise on a mean gradient and the steps, and its epsilon is its own, a larger one."""

from dataclasses import replace

import pytest
from dp_accounting import dp_event, pld

from sfumato import Gaussian, Poisson, PrivacyPlan, SfumatoError
from sfumato.privacy import FullBatch, QuantileClipping
from sfumato.privacy.planning.by_name import request_by_names
from studies.total_noise import law_violation, scaled_plan, total_noise

LARGE = PrivacyPlan.calibrate(examples=50_000, batch_size=4096, steps=500, noise_multiplier=8.0, delta=1e-6)


def epsilon_of(probability: float, sigma: float, steps: int, delta: float) -> float:
    """By the library alone."""
    accountant = pld.PLDAccountant()
    step = dp_event.PoissonSampledDpEvent(probability, dp_event.GaussianDpEvent(sigma))
    return accountant.compose(dp_event.SelfComposedDpEvent(step, steps)).get_epsilon(delta)


@pytest.mark.parametrize("factor", [16, 100])
def test_noise_over_the_batch_and_steps_are_kept(factor):
    small = scaled_plan(LARGE, factor)
    assert small.expected_batch_size == round(4096 / factor)
    assert small.noise_multiplier / small.expected_batch_size == pytest.approx(8 / 4096, rel=1e-12)
    assert total_noise(small) == pytest.approx(total_noise(LARGE), rel=1e-12)
    kept = ("population", "steps", "delta", "clipping", "unit", "adjacency")
    assert [getattr(small, name) for name in kept] == [getattr(LARGE, name) for name in kept]


def test_total_noise_is_that_of_the_paper():
    # eta^2 = q^2 S / (2 sigma^2), with q = 0.1, S = 800, sigma = 4: eta^2 = 0.01 * 800 / 32 = 1/4.
    plan = PrivacyPlan.calibrate(examples=1000, batch_size=100, steps=800, noise_multiplier=4.0, delta=1e-5)
    assert total_noise(plan) == pytest.approx(2)


def test_a_simulated_plan_states_the_epsilon_of_its_own_noise():
    found = scaled_plan(LARGE, 4).epsilon()
    assert found == pytest.approx(epsilon_of(1024 / 50_000, 2.0, 500, 1e-6), rel=1e-2)
    assert found > LARGE.epsilon()


def test_above_the_law_epsilon_hardly_changes():
    """From a noise multiplier of about 2 on epsilon follows from the total noise."""
    plan = replace(LARGE, mechanism=Gaussian(noise_multiplier=32.0))
    small = scaled_plan(plan, 16)
    assert small.noise_multiplier == 2.0
    assert plan.epsilon() < small.epsilon() < 1.2 * plan.epsilon()
    assert law_violation(small, plan) is None
    said = law_violation(scaled_plan(plan, 64), plan)
    assert said is not None
    assert f"{scaled_plan(plan, 64).epsilon():.4g}" in said


def test_a_full_batch_becomes_a_poisson_sample():
    full = PrivacyPlan.calibrate(examples=1000, batch_size=1000, steps=60, noise_multiplier=10.0, delta=1e-5)
    assert isinstance(full.participation, FullBatch)
    small = scaled_plan(full, 10)
    assert small.participation == Poisson(batch_size=100)
    assert small.sampling_probability == pytest.approx(0.1)
    assert small.epsilon() > full.epsilon()


def planned(**pair) -> PrivacyPlan:
    asked = request_by_names(examples=1000, **pair)._asdict()
    return PrivacyPlan.calibrate(examples=1000, batch_size=100, steps=10, noise_multiplier=8.0, delta=1e-5, **asked)


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (planned(participation="truncated"), "participation is truncated"),
        (planned(mechanism="banded"), "mechanism is banded"),
        (replace(LARGE, clipping=QuantileClipping(count_noise=200.0)), "this one is adaptive"),
    ],
)
def test_a_plan_that_the_law_does_not_speak_of_is_refused(plan, words):
    with pytest.raises(SfumatoError) as refused:
        scaled_plan(plan, 2)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("batch", "factor", "words"), [(4096, 4097, "give at most 4096"), (1, 2, "give a larger batch")]
)
def test_a_factor_that_leaves_no_example_is_refused(batch, factor, words):
    with pytest.raises(SfumatoError) as refused:
        scaled_plan(replace(LARGE, participation=Poisson(batch_size=batch)), factor)
    assert words in str(refused.value)
