"""What a statement says beyond one point: bounds that hold, figures of the papers, and none that is rounded down."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import ndtr, ndtri

from sfumato import FullBatch, Gaussian, Poisson, PrivacyPlan
from sfumato.privacy import CandidateCount, PrivateSelection, detections
from sfumato.privacy.statements.curve import beyond_one_point, dominating_mu, gaussian_deltas, up_to_digits
from sfumato.privacy.statements.detection import EPSILONS

PLAN = PrivacyPlan(
    population=50_000,
    participation=Poisson(batch_size=4096),
    mechanism=Gaussian(noise_multiplier=10.0),
    steps=875,
    delta=1e-5,
)
FULL = replace(PLAN, participation=FullBatch(), steps=60, mechanism=Gaussian(noise_multiplier=10.0))


def test_a_published_plan_has_the_figures_that_are_known_of_it():
    said = beyond_one_point(PLAN)
    assert said["true_positives"] == {"0.001": 0.0023, "0.01": 0.0187, "0.1": 0.1497}
    assert [one["epsilon"] for one in said["curve"]] == list(EPSILONS)


def test_each_pair_of_the_curve_holds_and_is_not_far_from_what_holds():
    for plan in (PLAN, FULL):
        for one in beyond_one_point(plan)["curve"]:
            delta = plan.loss.delta(one["epsilon"])
            assert delta <= one["delta"] <= max(1.05 * delta, 1e-9)


def test_a_gaussian_is_its_own_mu():
    said = beyond_one_point(FULL)["mu"]
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
    said = beyond_one_point(PLAN)["mu"]
    rates = [0.0003, 0.004, 0.03, 0.2, 0.7]
    allowed = ndtr(ndtri(rates) + said["mu"]) + said["except_with"]
    found = np.array(detections(PLAN, rates))
    assert (found <= allowed * (1 + 1e-9) + 1e-9).all()
    assert (allowed - found <= said["gap"] + 1e-5).all()


def test_a_search_has_pairs_and_no_mu():
    selection = PrivateSelection(plan=FULL, draws=CandidateCount(mean=5), score_noise=None)
    said = beyond_one_point(selection)
    assert said["mu"] is None
    for one in said["curve"][::6]:
        assert selection.epsilon(one["delta"]) <= one["epsilon"]


def test_digits_are_rounded_up_alone():
    for value in (1.0, 0.9991, 1.2341e-5, 9.999e-7, 0.5, 1e-9):
        found = up_to_digits(value)
        assert value <= found <= 1.011 * value
    assert up_to_digits(0.0) == 0.0
