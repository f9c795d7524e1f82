"""The law of the number of candidates: against scipy where it has the law, against the paper's formula elsewhere."""

from __future__ import annotations

import json
import math
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sfumato import SfumatoError
from sfumato.privacy import CandidateCount

SHAPES = [-0.5, 0.0, 0.3, 1.0, 4.0, 1000.0, math.inf]


def gamma_of(mean: float, shape: float) -> float:
    """Definition 1's gamma from the mean, by trying: far from the formula's own bisection."""
    low, high = 1e-6, 1 - 1e-12
    for _ in range(200):
        middle = math.sqrt(low * high)
        average = (
            (1 / middle - 1) / math.log(1 / middle)
            if shape == 0
            else shape * (1 - middle) / (middle * (1 - middle**shape))
        )
        low, high = (low, middle) if average < mean else (middle, high)
    return math.sqrt(low * high)


def by_definition(mean: float, shape: float, count: int) -> float:
    """Papernot and Steinke 2021, definition 1: (1-g)^k / (g^-eta - 1) * product of (l + eta) / (l + 1) below k."""
    if count == 0:
        return 0.0
    gamma = gamma_of(mean, shape)
    if shape == 0:
        return (1 - gamma) ** count / (count * math.log(1 / gamma))
    product = math.prod((below + shape) / (below + 1) for below in range(count))
    return (1 - gamma) ** count / (gamma**-shape - 1) * product


@pytest.mark.parametrize(("mean", "shape"), [(1.2, -0.9), (2.5, -0.5), (1.2, 0.0), (2.5, 0.3), (1.2, 4.0)])
def test_the_law_is_the_paper_s(mean, shape):
    masses = list(islice(CandidateCount(mean=mean, shape=shape).masses(), 12))
    expected = [by_definition(mean, shape, count) for count in range(len(masses))]
    assert masses == pytest.approx(expected, rel=1e-7)


def test_named_laws_are_scipy_s():
    for count, mass in islice(enumerate(CandidateCount(mean=10, shape=1).masses()), 60):
        assert mass == pytest.approx(stats.geom.pmf(count, 0.1), rel=1e-12)
    logarithmic = CandidateCount(mean=10)
    spread = -math.expm1(-logarithmic.log_inverse_gamma)
    for count, mass in islice(enumerate(logarithmic.masses()), 1, 60):
        assert mass == pytest.approx(stats.logser.pmf(count, spread), rel=1e-12)
    for count, mass in islice(enumerate(CandidateCount(mean=10, shape=math.inf).masses()), 60):
        assert mass == pytest.approx(stats.poisson.pmf(count, 10), rel=1e-12)
    binomial = CandidateCount(mean=10, shape=3)
    gamma = math.exp(-binomial.log_inverse_gamma)
    for count, mass in islice(enumerate(binomial.masses()), 1, 60):
        assert mass == pytest.approx(stats.nbinom.pmf(count, 3, gamma) / (1 - gamma**3), rel=1e-11)


@given(mean=st.floats(1.001, 60), shape=st.sampled_from(SHAPES))
@settings(max_examples=25, deadline=None)
def test_masses_add_up_to_one_and_have_the_mean(mean, shape):
    masses = list(CandidateCount(mean=mean, shape=shape).masses())
    assert min(masses) >= 0
    assert math.fsum(masses) == pytest.approx(1, abs=1e-13)
    assert math.fsum(count * mass for count, mass in enumerate(masses)) == pytest.approx(mean, rel=1e-11)


@pytest.mark.parametrize("shape", SHAPES)
def test_shares_and_quantiles_are_inverse(shape):
    draws = CandidateCount(mean=7, shape=shape)
    for share in (0.0, 0.1, 0.5, 0.95, 0.999):
        most = draws.quantile(share)
        assert draws.cdf(most) > share
        assert most == 0 or draws.cdf(most - 1) <= share
    assert draws.cdf(0) == pytest.approx(next(draws.masses()))
    assert draws.cdf(1_000_000) == pytest.approx(1)
    assert draws.quantile(1 - 2**-53) > draws.quantile(0.999), "the last of all uniform numbers is answered too"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"mean": 1}, "mean must be above 1"),
        ({"mean": 501}, "at most 500, got 501"),
        ({"mean": math.inf}, "mean must be a finite number"),
        ({"mean": 10, "shape": 1001}, "shape must be above -1 and at most 1000"),
        ({"mean": 10, "shape": math.nan}, "shape must be a finite number"),
        ({"mean": 10, "shape": -0.9}, "a few extremely long searches among many with one candidate"),
    ],
)
def test_laws_that_are_none_are_refused(fields, words):
    with pytest.raises(SfumatoError, match=words):
        CandidateCount(**fields)


@pytest.mark.parametrize("shape", SHAPES)
def test_it_survives_json(shape):
    draws = CandidateCount(mean=3, shape=shape)
    data = json.loads(json.dumps(draws.to_dict(), allow_nan=False))
    assert CandidateCount.from_dict(data) == draws


@pytest.mark.parametrize("data", [{"mean": 3}, {"mean": 3, "shape": 0, "more": 1}, [3, 0], {"mean": 3, "shape": "x"}])
def test_other_data_are_no_law(data):
    with pytest.raises(SfumatoError, match=r"exactly a mean and a shape|shape must be"):
        CandidateCount.from_dict(data)
