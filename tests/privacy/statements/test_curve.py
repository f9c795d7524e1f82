"""What a statement says beyond one point: bounds that hold, figures of the papers, and none that is rounded down."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr, ndtri
from scipy.stats import norm

from sfumato import FullBatch, Gaussian, PrivacyPlan, SfumatoError
from sfumato.privacy import reconstruction_rates, true_positive_rates
from sfumato.privacy.statements.curve import EPSILONS, curve_fields, dominating_mu, gaussian_deltas, up_to_digits

PLAN = PrivacyPlan.calibrate(examples=50_000, batch_size=4096, steps=875, noise_multiplier=10.0, delta=1e-5)
FULL = replace(PLAN, participation=FullBatch(), steps=60, mechanism=Gaussian(noise_multiplier=10.0))


def test_a_published_plan_has_the_figures_that_are_known_of_it():
    said = curve_fields(PLAN)
    assert said["true_positives"] == {"0.001": 0.0023, "0.01": 0.0187, "0.1": 0.1497}
    assert [one["epsilon"] for one in said["curve"]] == list(EPSILONS)


def test_each_pair_of_the_curve_holds_and_is_not_far_from_what_holds():
    for plan in (PLAN, FULL):
        for one in curve_fields(plan)["curve"]:
            delta = plan.loss.delta(one["epsilon"])
            assert delta <= one["delta"] <= max(1.05 * delta, 1e-9)


def test_a_gaussian_is_its_own_mu():
    said = curve_fields(FULL)["mu"]
    assert said == {"mu": math.ceil(math.sqrt(60) * 1000) / 10_000, "except_with": 0.0, "gap": 0.0}


@pytest.mark.parametrize("spared", [1e-6, 1e-4])
def test_mu_dominates_everywhere_and_a_little_less_does_not(spared):
    mu = dominating_mu(PLAN, spared)
    epsilons = np.linspace(0.0, 3.0, 1237)
    deltas = np.array(PLAN.loss.deltas(epsilons.tolist(), grid=1e-3))
    assert (deltas <= gaussian_deltas(np.full(len(epsilons), mu), epsilons) + spared).all()
    less = np.full(len(epsilons), 0.97 * mu)
    assert not (deltas <= gaussian_deltas(less, epsilons) + spared).all()


def test_the_gaussian_has_more_true_positives_by_no_more_than_the_gap():
    said = curve_fields(PLAN)["mu"]
    rates = [0.0003, 0.004, 0.03, 0.2, 0.7]
    allowed = ndtr(ndtri(rates) + said["mu"]) + said["except_with"]
    found = np.array(true_positive_rates(PLAN, rates))
    assert (found <= allowed * (1 + 1e-9) + 1e-9).all()
    assert (allowed - found <= said["gap"] + 1e-5).all()


def test_digits_are_rounded_up_alone():
    for value in (1.0, 0.9991, 1.2341e-5, 9.999e-7, 0.5, 1e-9):
        found = up_to_digits(value)
        assert value <= found <= 1.011 * value
    assert up_to_digits(0.0) == 0.0


RATES = [1e-4, 1e-3, 1e-2, 1e-1]
SAMPLED = PrivacyPlan.calibrate(examples=50_000, batch_size=4096, steps=875, noise_multiplier=10.0, delta=1e-5)


def full_batches(sigma: float, steps: int = 1) -> PrivacyPlan:
    return PrivacyPlan.calibrate(examples=100, batch_size=100, steps=steps, noise_multiplier=sigma, delta=1e-5)


@given(sigma=st.floats(0.2, 20), rate=st.floats(1e-4, 0.5))
@settings(max_examples=20)
def test_a_gaussian_s_bound_is_just_above_its_closed_form(sigma, rate):
    (bound,) = true_positive_rates(full_batches(sigma), [rate])
    truth = norm.cdf(norm.ppf(rate) + 1 / sigma)
    assert truth * (1 - 1e-9) <= bound <= truth * 1.01


def test_no_threshold_on_what_a_sampled_run_releases_does_better():
    """The best test there is against a run of one coordinate: the likelihood ratio of all its steps."""
    plan = PrivacyPlan.calibrate(examples=100, batch_size=50, steps=4, noise_multiplier=1.0, delta=1e-5)
    generator, runs, half = np.random.default_rng(0), 200_000, 0.5
    without = generator.normal(size=(runs, 4))
    used = generator.normal(size=(runs, 4)) + (generator.random((runs, 4)) < half)

    def score(seen):
        return np.log1p(half * np.expm1(seen - 0.5)).sum(axis=1)

    for rate, bound in zip((0.01, 0.1), true_positive_rates(plan, [0.01, 0.1]), strict=True):
        found = (score(used) > np.quantile(score(without), 1 - rate)).mean()
        assert 0.93 * bound < found < bound * 1.03
    (too_small,) = true_positive_rates(plan.with_noise(1.2), [0.1])
    assert found > too_small * 1.03, "a bound for more noise than there was would have been noticed"


def test_hardly_any_noise_is_worth_nothing_and_much_hides_all():
    assert true_positive_rates(full_batches(1e-3), RATES) == [1.0] * 4
    assert true_positive_rates(full_batches(1e4), RATES) == pytest.approx(RATES, rel=0.01)


@pytest.mark.parametrize("rate", [0.0, 1.0, float("nan")])
def test_a_rate_that_is_none_is_refused(rate):
    with pytest.raises(SfumatoError, match="false_alarms"):
        true_positive_rates(SAMPLED, [rate])


def test_of_a_gaussian_reconstruction_has_the_known_bound():
    """1 - f(kappa) = Phi(Phi^-1(kappa) + mu) (Kaissis et al. 2023, for the Gaussian mechanism)."""
    guesses = [1e-6, 1e-4, 0.001, 0.01, 0.1, 0.5]
    exact = ndtr(ndtri(guesses) + math.sqrt(60) / 10)
    found = np.array(reconstruction_rates(FULL, guesses))
    assert (found >= exact).all()
    assert found == pytest.approx(exact, rel=0.02)


def test_the_best_attack_reconstructs_less_often_than_the_bound():
    """The best attack on a step that adds noise to one of ten orthogonal contributions takes the likeliest."""
    plan = replace(FULL, steps=1, mechanism=Gaussian(noise_multiplier=0.5))
    generator = np.random.default_rng(0)
    true = generator.integers(10, size=20_000)
    seen = np.eye(10)[true] + 0.5 * generator.normal(size=(20_000, 10))
    (bound,) = reconstruction_rates(plan, [0.1])
    success = float((seen.argmax(1) == true).mean())
    assert 0.4 < success < bound < 0.8


@settings(deadline=None, max_examples=20)
@given(st.lists(st.floats(1e-6, 0.99), min_size=2, max_size=2, unique=True), st.floats(0.05, 0.95))
def test_the_bound_is_concave_as_its_proof_needs(ends, part):
    middle = part * ends[0] + (1 - part) * ends[1]
    low, high, between = reconstruction_rates(PLAN, [*ends, middle])
    assert between >= part * low + (1 - part) * high - 1e-12
