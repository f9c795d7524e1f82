"""What an attacker can detect at most: against published figures, a closed form, and tests that are really run."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from sfumato import PrivacyPlan, SfumatoError
from sfumato.privacy import CandidateCount, PrivateSelection, detections, gaussian_detections

RATES = [1e-4, 1e-3, 1e-2, 1e-1]
SAMPLED = PrivacyPlan.calibrate(examples=50_000, batch_size=4096, steps=875, noise_multiplier=10.0, delta=1e-5)


def full_batches(sigma: float, steps: int = 1) -> PrivacyPlan:
    return PrivacyPlan.calibrate(examples=100, batch_size=100, steps=steps, noise_multiplier=sigma, delta=1e-5)


def test_de_et_al_table_13_at_epsilon_1():
    assert detections(SAMPLED, RATES) == pytest.approx([0.00026, 0.00221, 0.01864, 0.14956], rel=0.02)


@given(sigma=st.floats(0.2, 20), rate=st.floats(1e-4, 0.5))
def test_a_gaussian_s_bound_is_just_above_its_closed_form(sigma, rate):
    (bound,) = detections(full_batches(sigma), [rate])
    truth = norm.cdf(norm.ppf(rate) + 1 / sigma)
    assert truth * (1 - 1e-9) <= bound <= truth * 1.01


@given(epsilon=st.floats(0.2, 20), rate=st.floats(1e-4, 0.5))
def test_the_scale_is_what_full_batches_of_that_epsilon_come_to(epsilon, rate):
    plan = PrivacyPlan.calibrate(examples=100, batch_size=100, steps=7, epsilon=epsilon, delta=1e-5)
    assert detections(plan, [rate]) == pytest.approx(gaussian_detections(epsilon, 1e-5, [rate]), rel=0.02)


def test_no_threshold_on_what_a_sampled_run_releases_does_better():
    """The best test there is against a run of one coordinate: the likelihood ratio of all its steps."""
    plan = PrivacyPlan.calibrate(examples=100, batch_size=50, steps=4, noise_multiplier=1.0, delta=1e-5)
    generator, runs, half = np.random.default_rng(0), 200_000, 0.5
    without = generator.normal(size=(runs, 4))
    used = generator.normal(size=(runs, 4)) + (generator.random((runs, 4)) < half)

    def score(seen):
        return np.log1p(half * np.expm1(seen - 0.5)).sum(axis=1)

    for rate in (0.01, 0.1):
        found = (score(used) > np.quantile(score(without), 1 - rate)).mean()
        (bound,) = detections(plan, [rate])
        assert 0.93 * bound < found < bound * 1.03
    (too_small,) = detections(plan.with_noise(1.2), [0.1])
    assert found > too_small * 1.03, "a bound for more noise than there was would have been noticed"


def test_a_selection_is_worth_less_than_its_plan_and_hardly_any_noise_is_worth_nothing():
    selection = PrivateSelection(plan=SAMPLED, draws=CandidateCount(mean=10), score_noise=None)
    of_all, of_one = detections(selection, RATES), detections(SAMPLED, RATES)
    assert all(whole > single for whole, single in zip(of_all, of_one, strict=True))
    assert detections(full_batches(1e-3), RATES) == [1.0] * 4
    assert detections(full_batches(1e4), RATES) == pytest.approx(RATES, rel=0.01)


@pytest.mark.parametrize("rate", [0.0, 1.0, float("nan")])
def test_a_rate_that_is_none_is_refused(rate):
    with pytest.raises(SfumatoError, match="false_alarms"):
        detections(SAMPLED, [rate])
