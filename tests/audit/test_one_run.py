"""One run: published figures, what is right as often as it says, and what does not change it."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from sfumato import SfumatoError
from sfumato.audit import epsilon_of, one_run, one_run_gaussian
from sfumato.audit.one_run import epsilon_by_guesses, epsilon_by_guesses_gaussian, p_value

PUBLISHED = [
    ((1000, 100, 90, 1e-5), 1.626144, 2.456405),
    ((1000, 1000, 900, 1e-5), 2.020646, 3.779339),
    ((5000, 500, 480, 1e-5), 2.783021, 4.062678),
]


@pytest.mark.parametrize(("case", "plain", "gaussian"), PUBLISHED, ids=str)
def test_published_figures(case, plain, gaussian):
    assert epsilon_by_guesses(*case, 0.95) == pytest.approx(plain, abs=2e-6)
    assert epsilon_by_guesses_gaussian(*case, 0.95) == pytest.approx(gaussian, abs=2e-6)


@pytest.mark.parametrize(
    ("case", "tests", "gaussian"),
    [((406, 379), 386, 2.164749), ((938, 934), 374, 4.7218075), ((5436, 5436), 140, 9.133752)],
)
def test_shifted_quantiles_at_the_best_threshold(case, tests, gaussian):
    found = epsilon_by_guesses_gaussian(20_000, *case, 1e-6, 1 - 0.05 / tests)
    assert found == pytest.approx(gaussian, rel=1e-5)


def naive(m: int, r: int, v: int, epsilon: float, delta: float) -> float:
    """Steinke et al. 2023, section 4: beta + 2 m delta max_i P[v > Bin >= v - i] / i."""
    q = 1 / (1 + math.exp(-epsilon))
    beta = binom.sf(v - 1, r, q)
    return min(
        1.0,
        beta + 2 * m * delta * max((binom.pmf(range(v - i, v), r, q).sum() / i for i in range(1, v + 1)), default=0),
    )


@given(m=st.integers(1, 300), data=st.data(), epsilon=st.floats(0, 4), delta=st.sampled_from([0, 1e-6, 1e-4, 1e-3]))
@settings(max_examples=25, deadline=None)
def test_the_probability_is_the_paper_s(m, data, epsilon, delta):
    r = data.draw(st.integers(1, m))
    v = data.draw(st.integers(0, r))
    assert p_value(m, r, v, epsilon, delta) == pytest.approx(naive(m, r, v, epsilon, delta), rel=1e-9, abs=1e-12)


@given(v=st.integers(1, 200), delta=st.sampled_from([1e-3, 1e-2, 0.1]))
@settings(max_examples=6, deadline=None)
def test_beyond_the_paper_s_formula_it_grows_with_epsilon_all_the_same(v, delta):
    found = [p_value(500, 200, v, epsilon, delta) for epsilon in np.linspace(0, 5, 30)]
    assert all(a <= b + 1e-12 for a, b in itertools.pairwise(found))
    assert all(p <= naive(500, 200, v, e, delta) + 1e-12 for p, e in zip(found, np.linspace(0, 5, 30), strict=True))


@pytest.mark.parametrize("bound", [one_run, one_run_gaussian])
def test_it_exceeds_the_truth_as_rarely_as_it_says(bound):
    mu, delta, random, above = 0.7, 1e-3, np.random.default_rng(3), 0
    truth = epsilon_of(mu, delta)
    for _ in range(60):
        coins = random.random(200) < 0.5
        scores = random.normal(mu * coins, 1)
        above += bound(scores, coins, delta=delta, confidence=0.8, guesses=(20, 20)).refutes(truth)
    assert above <= 0.2 * 60


@pytest.mark.parametrize("bound", [one_run, one_run_gaussian])
def test_order_confidence_and_the_most(bound):
    random = np.random.default_rng(4)
    coins = random.random(300) < 0.5
    scores = random.normal(3 * coins, 1)
    found = [bound(scores, coins, delta=1e-5, confidence=c) for c in (0.5, 0.95, 0.999)]
    assert [one.epsilon for one in found] == sorted((one.epsilon for one in found), reverse=True)
    assert all(0 < one.epsilon <= one.at_most for one in found)
    order = random.permutation(300)
    assert bound(scores[order], coins[order], delta=1e-5) == bound(scores, coins, delta=1e-5)
    assert bound(scores, coins, delta=1e-5).proven == (bound is one_run)


def test_the_smallest_fault_is_noticed():
    from sfumato.audit import mu_of

    mu, random = mu_of(2.0, 1e-5), np.random.default_rng(6)
    coins = random.random(1000) < 0.5
    fault = one_run(random.normal(mu * coins, 1), coins, delta=1e-5, nominal_epsilon=2.0).smallest_fault
    assert fault is not None
    noticed = 0
    for _ in range(30):
        coins = random.random(1000) < 0.5
        noticed += one_run(random.normal(mu / fault * 1.02 * coins, 1), coins, delta=1e-5).refutes(2.0)
    assert noticed >= 24


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"guesses": (3, 2)}, r"guesses must be \(k_in, k_out\), together 1 to 4, got \(3, 2\)"),
        ({"scores": [1.0, 2.0, 3.0]}, "scores must be one number for each canary"),
        ({"scores": [1.0, 2.0, 3.0, math.nan]}, "with 1 NaN"),
    ],
)
def test_what_cannot_be_audited_is_refused(change, message):
    asked = {"scores": [1.0, 2.0, 3.0, 4.0], "included": [True, False, True, False], "delta": 1e-5} | change
    with pytest.raises(SfumatoError, match=message):
        one_run(asked.pop("scores"), asked.pop("included"), **asked)
