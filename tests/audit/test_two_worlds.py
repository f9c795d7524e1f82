"""Two worlds: what can be shown at most, what is right as often as it says, and what does not change it."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta

from sfumato import SfumatoError
from sfumato.audit import at_least, at_most, epsilon_of, largest_provable, mu_of, two_worlds


def worlds(mu: float, n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    return random.normal(mu, 1, n), random.normal(0, 1, n)


@pytest.mark.parametrize(("runs", "most"), [(500, 4.91), (1000, 5.60)])
def test_the_largest_provable(runs: int, most: float):
    assert largest_provable(runs, 1e-5, 0.95) == pytest.approx(most, abs=0.005)
    apart = two_worlds(np.ones(runs), np.zeros(runs), delta=1e-5, threshold=0.5)
    assert apart.epsilon == apart.at_most == pytest.approx(largest_provable(runs, 1e-5, 1 - 0.05 / 2))


@given(n=st.integers(1, 2000), data=st.data(), alpha=st.floats(1e-6, 0.4))
@settings(max_examples=20, deadline=None)
def test_clopper_pearson_is_scipy_s_and_covers_the_share(n, data, alpha):
    k = data.draw(st.integers(0, n))
    low, high = at_least(k, n, alpha), at_most(k, n, alpha)
    assert 0 <= low <= k / n <= high <= 1
    if k < n:
        assert high == pytest.approx(beta.ppf(1 - alpha, k + 1, n - k), rel=1e-9)
    if k:
        assert low == pytest.approx(beta.ppf(alpha, k, n - k + 1), rel=1e-7)


def test_a_proven_bound_exceeds_the_truth_as_rarely_as_it_says():
    """2,000 repetitions of 300 scores a world, at the threshold where rates are hardest: alpha is 20%."""
    mu, delta = 1.0, 0.05
    truth = epsilon_of(mu, delta)
    place = truth / mu + mu / 2  # where ln((TPR - delta) / FPR) is the truth
    random = np.random.default_rng(1)
    above = 0
    for _ in range(2000):
        found = two_worlds(
            random.normal(mu, 1, 300), random.normal(0, 1, 300), delta=delta, confidence=0.8, threshold=place
        )
        above += found.epsilon > truth
    assert above <= 0.2 * 2000


@pytest.mark.parametrize("threshold", [None, np.linspace(-3, 4, 30)], ids=["chosen", "thirty tried"])
def test_what_was_chosen_on_the_scores_costs_what_it_must(threshold):
    """The worlds are the same: whatever is above 0 is wrong, and thresholds that were tried must not add up."""
    random = np.random.default_rng(2)
    wrong = sum(
        two_worlds(random.normal(size=200), random.normal(size=200), delta=0, confidence=0.8, threshold=threshold)
        .refutes(0.0)
        for _ in range(150)
    )  # fmt: skip
    assert wrong <= 0.2 * 150


def test_it_is_the_logarithm_of_the_rates_without_delta():
    """Hall et al. 2013: ln((TPR - delta) / FPR), of 90 of 100 against 10 of 100, each rate at 1 - alpha / 4."""
    inside, outside = np.repeat([1.0, 0.0], [90, 10]), np.repeat([1.0, 0.0], [10, 90])
    low, high = at_least(90, 100, 0.05 / 4), at_most(10, 100, 0.05 / 4)
    found = two_worlds(inside, outside, delta=0.3, threshold=0.5)
    assert found.epsilon == pytest.approx(math.log((low - 0.3) / high))


def test_thresholds_that_are_tried_share_what_may_go_wrong():
    inside, outside = worlds(2.0, 500)
    alone = [two_worlds(inside, outside, delta=1e-5, threshold=t, confidence=0.975).epsilon for t in (0.5, 1.5)]
    assert two_worlds(inside, outside, delta=1e-5, threshold=(0.5, 1.5), confidence=0.95).epsilon == max(alone)


def test_scores_that_chose_the_threshold_are_not_counted():
    """All that speaks for it lies in the first half."""
    inside, outside = np.r_[np.ones(500), np.zeros(500)], np.zeros(1000)
    assert two_worlds(inside, outside, delta=1e-5).epsilon == 0


@given(seed=st.integers(0, 100), mu=st.floats(0, 4))
@settings(max_examples=10, deadline=None)
def test_more_confidence_shows_less_and_never_more_than_could_be_shown(seed, mu):
    inside, outside = worlds(mu, 400, seed)
    found = [two_worlds(inside, outside, delta=1e-5, confidence=c) for c in (0.5, 0.9, 0.95, 0.999)]
    at_one = [two_worlds(inside, outside, delta=1e-5, confidence=c, threshold=mu / 2) for c in (0.5, 0.9, 0.999)]
    assert [one.epsilon for one in at_one] == sorted((one.epsilon for one in at_one), reverse=True)
    assert all(0 <= one.epsilon <= one.at_most for one in found + at_one)


def test_both_directions_are_looked_at():
    """Nobody out is above 0, and half of those in are below: ln((TNR - delta) / FNR) shows nothing, the other much."""
    inside, outside = np.tile([-1.0, 1.0], 500), np.full(1000, -1.0)
    there = two_worlds(inside, outside, delta=0, threshold=0)
    back = two_worlds(-outside, -inside, delta=0, threshold=0.0)
    assert there.epsilon == pytest.approx(math.log(0.5 / 0.0044), abs=0.1)
    assert back.epsilon == pytest.approx(there.epsilon, abs=0.01)


def test_the_smallest_fault_is_noticed_nine_times_of_ten():
    nominal, n = 3.0, 2000
    mu = mu_of(nominal, 1e-5)
    fault = two_worlds(*worlds(mu, n), delta=1e-5, threshold=mu / 2, nominal_epsilon=nominal).smallest_fault
    assert fault is not None
    assert 0.1 < fault < 0.5
    noticed = 0
    for seed in range(40):
        inside, outside = worlds(mu / fault * 0.99, n, seed)
        noticed += two_worlds(inside, outside, delta=1e-5, threshold=mu / fault / 2).refutes(nominal)
    assert noticed >= 32


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scores_in": [1.0, math.nan]}, "scores_in must be a list of numbers.*1 NaN"),
        ({"scores_out": []}, "scores_out must be a list of numbers"),
        ({"choosing": 4}, "choosing must lie between 1 and 3, got 4"),
        ({"confidence": 95}, "confidence must lie strictly between 0 and 1, got 95"),
        ({"delta": -1}, "delta must not be negative, got -1"),
    ],
)
def test_what_cannot_be_audited_is_refused(change, message):
    asked = {"scores_in": [1.0] * 4, "scores_out": [0.0] * 4, "delta": 1e-5} | change
    with pytest.raises(SfumatoError, match=message):
        two_worlds(asked.pop("scores_in"), asked.pop("scores_out"), **asked)
