"""White box: thresholds given, mu from below, the mixture of a sampled canary, and both bounds side by side."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr, ndtri
from scipy.stats import binom

from sfumato import PrivacyPlan, SfumatoError
from sfumato.audit import at_least, at_most, delta_of, epsilon_of, mu_of, white_box
from sfumato.audit.bound import epsilon_of_mixture
from sfumato.audit.gaussian import CELLS, mu_lower_bound, refuted


def observed(mu: float, n: int, seed: int = 0, q: float = 1.0, scale: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    return random.normal(mu * (random.random(n) < q), scale, n), random.normal(0, scale, n)


@pytest.mark.parametrize(("nominal", "by_halves", "shown"), [(1, 0.72, 0.82), (3, 2.67, 2.79), (8, 7.54, 7.71)])
def test_what_5000_observations_can_show(nominal, by_halves, shown):
    """At the counts that are expected: by an interval for each rate, and by both counts together."""
    mu = mu_of(nominal, 1e-5)
    error = round(5000 * float(ndtr(-mu / 2)))
    rate = at_most(error, 5000, 0.025)
    assert epsilon_of(float(ndtri(1 - rate) - ndtri(rate)), 1e-5) == pytest.approx(by_halves, abs=0.03)
    assert epsilon_of(mu_lower_bound(error, error, (5000, 5000), 0.05), 1e-5) == pytest.approx(shown, abs=0.01)


@given(mu=st.floats(0.05, 8), delta=st.sampled_from([1e-9, 1e-5, 1e-2]))
@settings(max_examples=20, deadline=None)
def test_epsilon_delta_and_mu_are_each_other_s_inverse(mu, delta):
    epsilon = epsilon_of(mu, delta)
    if epsilon:
        assert mu_of(epsilon, delta) == pytest.approx(mu, rel=1e-6)
        assert delta_of(mu, epsilon) == pytest.approx(delta, rel=1e-6)


@pytest.mark.parametrize("q", [1.0, 0.3])
def test_it_exceeds_the_truth_as_rarely_as_it_says(q):
    above = 0
    for seed in range(200):
        inside, outside = observed(1.0, 300, seed, q)
        above += refuted(1.0, int((inside < 0.7).sum()), int((outside >= 0.7).sum()), (300, 300), 0.2, q)
    assert 0.08 * 200 < above <= 0.2 * 200 + 3 * math.sqrt(0.2 * 0.8 * 200), "nor is it rarer by much"


@pytest.mark.parametrize(("mu", "q", "alarm"), [(1.0, 1.0, 0.4), (0.3, 1.0, 0.1), (1.5, 0.4, 0.2)])
def test_no_true_mu_is_refuted_more_often_than_alpha_by_enumeration(mu, q, alarm):
    """Over all pairs of counts of 12 observations in each world."""
    counts, alpha = np.arange(13), 0.3
    miss = (1 - q) * (1 - alarm) + q * float(ndtr(ndtri(1 - alarm) - mu))
    found = [[refuted(mu, lost, wrong, (12, 12), alpha, q) for wrong in range(13)] for lost in range(13)]
    total = binom.pmf(counts, 12, miss) @ np.array(found) @ binom.pmf(counts, 12, alarm)
    assert total <= alpha
    assert mu_lower_bound(12, 0, (12, 12), alpha, q) == 0


@pytest.mark.parametrize(
    ("lost", "wrong", "sizes", "q"), [(9, 30, (60, 80), 1.0), (25, 3, (60, 40), 1.0), (35, 12, (80, 90), 0.6)]
)
def test_a_mu_is_refuted_where_every_probability_of_a_false_alarm_refutes_it(lost, wrong, sizes, q):
    """Cell by cell, over all counts: which of them decides, no short cut may change."""
    alpha, alarms = 0.1, np.arange(sizes[1] + 1)
    ends = np.linspace(at_least(wrong, sizes[1], alpha / 200), at_most(wrong, sizes[1], alpha / 200), CELLS + 1)

    def missed(alarm, mu):
        return (1 - q) * (1 - alarm) + q * ndtr(ndtri(1 - alarm) - mu)

    own = (wrong + 0.5) / (sizes[1] + 1)
    estimate = ndtri(1 - own) - ndtri(((lost + 0.5) / (sizes[0] + 1) - (1 - q) * (1 - own)) / q)
    few = np.floor((sizes[0] + 1) * missed((alarms + 0.5) / (sizes[1] + 1), estimate) - 0.5 + 1e-9)

    def chance(mu: float) -> float:
        cells = itertools.pairwise(ends)
        return alpha / 100 + max(
            binom.pmf(alarms, sizes[1], low) @ binom.cdf(few, sizes[0], missed(high, mu)) for low, high in cells
        )

    mu = mu_lower_bound(lost, wrong, sizes, alpha, q)
    assert mu > 0.1
    for factor in (0.9, 1 - 1e-5, 1 + 1e-5, 1.1):
        assert refuted(factor * mu, lost, wrong, sizes, alpha, q) == (chance(factor * mu) < alpha) == (factor < 1)


def test_of_a_sampled_canary_the_mu_is_that_of_the_steps_that_it_takes_part_in():
    inside, outside = observed(2.0, 30_000, q=0.25)
    found, _ = white_box(inside, outside, delta=1e-5, thresholds=1.5, sampling_probability=0.25)
    assert found.mu == pytest.approx(2.0, rel=0.1)
    assert found.mu < 2.0
    wrong, _ = white_box(inside, outside, delta=1e-5, thresholds=1.5)
    assert wrong.mu < 1.0, "what is not fitted as a mixture shows far less"


@pytest.mark.parametrize(("q", "sigma", "steps"), [(0.01, 1.0, 1000), (0.25, 4.0, 200), (0.1, 2.0, 1), (0.5, 0.8, 50)])
def test_sampled_releases_compose_to_the_accountant_s_epsilon_and_never_above(q, sigma, steps):
    plan = PrivacyPlan.calibrate(
        examples=1000, batch_size=round(1000 * q), steps=steps, noise_multiplier=sigma, delta=1e-5
    )
    found = epsilon_of_mixture(1 / sigma, q, steps, 1e-5)
    assert 0.98 * plan.epsilon() < found <= plan.epsilon()


def test_both_bounds_and_their_words():
    mu = mu_of(3.0, 1e-5)
    gaussian, plain = white_box(*observed(mu, 5000), delta=1e-5, thresholds=mu / 2, nominal_mu=mu)
    assert not gaussian.proven
    assert "assumes a Gaussian trade-off curve" in gaussian.sentence
    assert plain.proven
    assert plain.epsilon < gaussian.epsilon <= 3.0
    assert 0.7 < gaussian.smallest_fault < 0.95
    assert (
        f"noise of {math.floor(gaussian.smallest_fault * 100)}% of its scale would have been noticed"
        in gaussian.sentence
    )


def test_the_smallest_fault_is_noticed():
    fault = white_box(*observed(1.0, 1500), delta=1e-5, thresholds=0.5, nominal_mu=1.0)[0].smallest_fault

    def accused(scale: float) -> int:
        """Of 60 repetitions."""
        seen = [observed(1.0, 1500, seed, scale=scale) for seed in range(60)]
        counts = [(int((inside < 0.5).sum()), int((outside >= 0.5).sum())) for inside, outside in seen]
        return sum(refuted(1.0, *found, (1500, 1500), 0.05) for found in counts)

    assert accused(fault * 0.995) >= 0.8 * 60
    assert accused(1.0) <= 0.1 * 60


def test_a_probability_of_nothing_is_refused():
    with pytest.raises(SfumatoError, match="sampling_probability must be positive, got 0"):
        white_box([1.0], [0.0], delta=1e-5, thresholds=0.5, sampling_probability=0)
