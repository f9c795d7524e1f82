"""Private selection: golden values, and a search whose divergence is known exactly."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from sfumato import FullBatch, Gaussian, Poisson, PrivacyPlan, SfumatoError
from sfumato.privacy import CandidateCount, PrivateSelection, least_score_noise
from sfumato.privacy.mechanism import BandedToeplitz, Tree
from sfumato.privacy.participation import CyclicPoisson, FixedOrder
from sfumato.privacy.statements.display import rounded_up

DE_2022 = PrivacyPlan(  # table 13, epsilon 1
    population=50_000,
    participation=Poisson(batch_size=4096),
    mechanism=Gaussian(noise_multiplier=10.0),
    steps=875,
    delta=1e-5,
)
SMALL = PrivacyPlan(
    population=1000,
    participation=Poisson(batch_size=100),
    mechanism=Gaussian(noise_multiplier=3.0),
    steps=50,
    delta=1e-5,
)


def full_batch(sigma: float, steps: int = 1, delta: float = 1e-5) -> PrivacyPlan:
    """Steps whose Renyi curve is a straight line: lambda T / (2 sigma^2)."""
    return PrivacyPlan(
        population=100, participation=FullBatch(), mechanism=Gaussian(noise_multiplier=sigma), steps=steps, delta=delta
    )


def public(plan: PrivacyPlan, mean: float, shape: float = 0.0) -> PrivateSelection:
    return PrivateSelection(plan=plan, draws=CandidateCount(mean=mean, shape=shape), score_noise=None)


# -- golden values: dp-accounting 0.6.0, RDP, De et al. 2022, table 13, epsilon 1 -------------------------------------

GOLDEN = [(10, 0, 1.74222), (10, 1, 2.10250), (30, -0.5, 1.65194), (30, math.inf, 4.43665)]


@pytest.mark.parametrize(("mean", "shape", "epsilon"), GOLDEN)
def test_golden_values(mean, shape, epsilon):
    assert public(DE_2022, mean, shape).epsilon() == pytest.approx(epsilon, abs=1e-5)


LAWS = {"logarithmic": 0.0, "geometric": 1.0, "Poisson": math.inf}


def test_the_table_of_the_documentation_is_true():
    page = (Path(__file__).resolve().parents[2] / "docs" / "tuning.md").read_text("utf-8")
    chosen = re.findall(r"^\| the best of K, (\w+), mean (\d+) \| (\d+) \| (\d+) \| ([\d.]+) \|$", page, re.MULTILINE)
    assert len(chosen) == 6
    for law, mean, half, most, epsilon in chosen:
        selection = public(DE_2022, int(mean), LAWS[law])
        assert rounded_up(selection.epsilon()) == epsilon
        assert (selection.draws.quantile(0.5), selection.draws.quantile(0.95)) == (int(half), int(most))
    every = re.findall(r"^\| all of (\d+) runs \| \1 \| \1 \| ([\d.]+) \|$", page, re.MULTILINE)
    assert [int(runs) for runs, _ in every] == [10, 30]
    for runs, epsilon in every:
        assert rounded_up(public(DE_2022, 10).epsilon_of_all(int(runs))) == epsilon
    assert f"where one run costs {rounded_up(DE_2022.epsilon())}:" in page


# -- a search whose outcome is known exactly --------------------------------------------------------------------------


def gamma_of(mean: float, shape: float) -> float:
    low, high = 1e-6, 1 - 1e-12
    for _ in range(200):
        middle = math.sqrt(low * high)
        average = (
            (1 / middle - 1) / math.log(1 / middle)
            if shape == 0
            else shape * (1 - middle) / (middle * (1 - middle**shape))
        )
        low, high = (low, middle) if average < mean else (middle, high)
    return low


def generating(share: np.ndarray, mean: float, shape: float) -> np.ndarray:
    """P(all K candidates are below), from the chance of one to be: the generating function of K."""
    if shape == math.inf:
        return np.exp(mean * (share - 1))
    gamma = gamma_of(mean, shape)
    if shape == 0:
        return np.log1p(-(1 - gamma) * share) / math.log(gamma)
    return ((1 - (1 - gamma) * share) ** -shape - 1) / (gamma**-shape - 1)


def exact_delta(sigma: float, epsilon: float, mean: float, shape: float) -> float:
    """The largest P(best in S) - e^epsilon P(best' in S), of a run that gives out N(0, sigma^2) or N(1, sigma^2).

    The largest value is the best; that neighbours shift it down instead of up is the other case.
    """
    edges = np.concatenate([[-np.inf], np.linspace(-10 * sigma - 1, 10 * sigma + 1, 20_001), [np.inf]])
    here = np.diff(generating(stats.norm.cdf(edges, 0, sigma), mean, shape))
    worst = 0.0
    for shift in (1, -1):
        there = np.diff(generating(stats.norm.cdf(edges, shift, sigma), mean, shape))
        for one, other in ((here, there), (there, here)):
            worst = max(worst, float(np.maximum(one - math.exp(epsilon) * other, 0).sum()))
    return worst


CASES = [(1.5, -0.5), (1.5, math.inf), (10, 0.0), (10, 3.0), (30, 1.0), (30, math.inf)]


@pytest.mark.parametrize(("mean", "shape"), CASES)
@pytest.mark.parametrize("sigma", [1.0, 4.0])
def test_a_search_that_is_known_exactly_costs_no_more(sigma, mean, shape):
    selection = public(full_batch(sigma, delta=1e-3), mean, shape)
    assert exact_delta(sigma, selection.epsilon(), mean, shape) <= 1e-3


@pytest.mark.parametrize(("mean", "shape"), [case for case in CASES if case[0] > 2])
def test_one_run_s_epsilon_would_not_hold_for_the_best_of_many(mean, shape):
    """The mistake that private selection is there to avoid; the exact search above would find it."""
    plan = full_batch(1.0, delta=1e-3)
    assert exact_delta(1.0, plan.epsilon(), mean, shape) > 1.4e-3


# -- scores -----------------------------------------------------------------------------------------------------------


def test_a_noisy_score_costs_nothing_below_the_training_and_its_own_above():
    draws = CandidateCount(mean=10)
    training = public(SMALL, 10).epsilon()
    just = least_score_noise(draws, epsilon=training, delta=SMALL.delta)
    private = PrivateSelection(plan=SMALL, draws=draws, score_noise=just)
    assert private.epsilon() == training
    assert replace(private, score_noise=100.0).epsilon() == training
    louder = replace(private, score_noise=just * 0.99).epsilon()
    assert louder > training
    assert louder == public(full_batch(just * 0.99), 10).epsilon(), "a count is one Gaussian of sensitivity 1"


@pytest.mark.parametrize("part", ["training", "validation"])
def test_a_record_is_in_one_part_and_each_part_is_paid_for(part):
    """Neither part's noise may be left out: with hardly any, the search costs a great deal."""
    noises = {"training": (0.5, 50.0), "validation": (50.0, 0.5)}[part]
    plan = full_batch(noises[0])
    selection = PrivateSelection(plan=plan, draws=CandidateCount(mean=10), score_noise=noises[1])
    assert selection.epsilon() > 10
    assert selection.epsilon() <= public(full_batch(0.5), 10).epsilon()


# -- laws -------------------------------------------------------------------------------------------------------------


def test_plain_composition_counts_scores_too():
    selection = PrivateSelection(plan=full_batch(5.0), draws=CandidateCount(mean=10), score_noise=2.0)
    assert selection.epsilon_of_all(9) == pytest.approx(full_batch(2.0, steps=9).epsilon())
    quiet = replace(selection, score_noise=50.0)
    assert quiet.epsilon_of_all(9) == pytest.approx(full_batch(5.0, steps=9).epsilon())
    with pytest.raises(SfumatoError, match="runs must be"):
        selection.epsilon_of_all(0)


@pytest.mark.parametrize(
    ("participation", "mechanism", "mu_squared"),
    [
        (FixedOrder(batch_size=30), Gaussian(noise_multiplier=2.0), 3 * 2 / 4),
        (FixedOrder(batch_size=30), Tree(noise_multiplier=2.0), 3 * 4 / 4),
        (FixedOrder(batch_size=30), BandedToeplitz(noise_multiplier=2.0, coefficients=(1.0, 0.5)), 3 * 2.25 / 4),
    ],
)
def test_more_runs_are_not_more_steps_of_one(participation, mechanism, mu_squared):
    """Four bins, five steps: a unit of the first bin takes part twice in each of three runs, not three times in 15."""
    plan = PrivacyPlan(population=100, participation=participation, mechanism=mechanism, steps=5, delta=1e-5)
    assert public(plan, 3).epsilon_of_all(3) == pytest.approx(full_batch(mu_squared**-0.5).epsilon())


def test_more_runs_have_groups_of_their_own():
    rule = CyclicPoisson(batch_size=10, groups=4)
    plan = PrivacyPlan(
        population=100, participation=rule, mechanism=Gaussian(noise_multiplier=2.0), steps=5, delta=1e-5
    )
    six_turns = replace(plan, steps=24)
    assert public(plan, 3).epsilon_of_all(3) == six_turns.epsilon()


# -- calibration ------------------------------------------------------------------------------------------------------


@given(
    share=st.floats(0.01, 1.0),
    steps=st.integers(1, 1000),
    epsilon=st.floats(0.2, 1.0),
    mean=st.floats(2.0, 40.0),
    shape=st.sampled_from([-0.3, 0.0, 1.0, math.inf]),
)
@example(share=0.1, steps=20, epsilon=2.0, mean=10.0, shape=0.0)
@settings(max_examples=1, deadline=None)
def test_the_least_noise_meets_the_whole_search_s_budget(share, steps, epsilon, mean, shape):
    draws = CandidateCount(mean=mean, shape=shape)
    selection = PrivateSelection.calibrate(
        examples=1000,
        batch_size=max(1, int(1000 * share)),
        steps=steps,
        delta=1e-5,
        epsilon=epsilon,
        draws=draws,
        score_noise=least_score_noise(draws, epsilon=epsilon, delta=1e-5),
    )
    assert selection.epsilon() <= epsilon
    assert selection.plan.steps == steps
    noise = selection.plan.noise_multiplier
    assert noise == round(noise, 4)
    if noise > 0.05:
        less = replace(selection.plan, mechanism=Gaussian(noise_multiplier=noise * 0.999 - 2e-4))
        assert public(less, mean, shape).epsilon() > epsilon


def calibrate(**changes):
    fields = {
        "examples": 1000,
        "batch_size": 100,
        "steps": 10,
        "delta": 1e-5,
        "epsilon": 1.0,
        "draws": CandidateCount(mean=10),
    }
    return PrivateSelection.calibrate(**{**fields, "score_noise": None, **changes})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"epsilon": 0}, "epsilon must be positive"),
        ({"score_noise": 1.0}, "alone cost more than epsilon 1 at delta 1e-05; give a score noise of at least 7.016"),
        ({"score_noise": 0}, "score_noise must be positive"),
        ({"score_noise": "20"}, "score_noise must be a number"),
    ],
)
def test_what_cannot_be_calibrated_is_refused(changes, words):
    with pytest.raises(SfumatoError, match=words):
        calibrate(**changes)


def test_a_privacy_loss_distribution_is_refused():
    with pytest.raises(SfumatoError, match="no privacy loss distribution follows from it"):
        public(SMALL, 10).epsilon(accountant="pld")


# -- identity ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shape", "score_noise"), [(-0.5, None), (math.inf, 7.5)])
def test_it_survives_json(shape, score_noise):
    selection = PrivateSelection(plan=SMALL, draws=CandidateCount(mean=10, shape=shape), score_noise=score_noise)
    again = PrivateSelection.from_dict(json.loads(json.dumps(selection.to_dict(), allow_nan=False)))
    assert again == selection
    assert again.fingerprint == selection.fingerprint
    assert again.epsilon() == selection.epsilon()


def test_equal_selections_share_a_fingerprint_and_others_do_not():
    one = public(SMALL, 10)
    assert one.fingerprint == public(SMALL, 10.0).fingerprint
    others = [
        public(SMALL, 11),
        public(SMALL, 10, 1),
        public(SMALL, 10, math.inf),
        replace(one, score_noise=20.0),
        public(replace(SMALL, steps=51), 10),
    ]
    assert len({one.fingerprint, *(other.fingerprint for other in others)}) == 6


@pytest.mark.parametrize("change", [{"more": 1}, {"draws": {"mean": 10}}, {"plan": {}}, {"score_noise": -1}])
def test_other_data_are_no_selection(change):
    with pytest.raises(SfumatoError):
        PrivateSelection.from_dict({**public(SMALL, 10).to_dict(), **change})
    with pytest.raises(SfumatoError, match="exactly its own fields"):
        PrivateSelection.from_dict(None)
