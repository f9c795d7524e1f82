"""A clipping norm that follows a quantile: one release of vectors and count, and the rule by which it follows."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato import FullBatch, Gaussian, Poisson, PrivacyPlan, SfumatoError
from sfumato.privacy import Circumstances, FixedClipping, QuantileClipping, Statement, Tree, User


def plan(**changes) -> PrivacyPlan:
    known = {
        "population": 6800,
        "participation": Poisson(batch_size=256),
        "mechanism": Gaussian(noise_multiplier=QuantileClipping(count_noise=1.6).vector_noise(0.62)),
        "steps": 200,
        "delta": 1e-4,
        "clipping": QuantileClipping(count_noise=1.6),
    }
    return PrivacyPlan(**(known | changes))


def test_the_split_of_andrew_et_al():
    assert QuantileClipping(count_noise=32 / 20).vector_noise(0.62) == pytest.approx(0.632, abs=5e-4)
    with pytest.raises(SfumatoError, match=r"noise_multiplier must be below 3\.2, twice the count_noise, got 3\.2"):
        QuantileClipping(count_noise=1.6).vector_noise(3.2)


def test_vectors_and_count_cost_what_their_joint_noise_costs():
    alone = plan(mechanism=Gaussian(noise_multiplier=0.62), clipping=FixedClipping(1.0))
    assert plan().noise_multiplier > 0.63
    assert plan().epsilon() == pytest.approx(alone.epsilon(), rel=1e-9)
    assert plan().epsilon_rdp == pytest.approx(alone.epsilon_rdp, rel=1e-9)
    tree = {"participation": FullBatch(), "steps": 8}
    joint = QuantileClipping(count_noise=50.0).joint_noise(40.0)
    adaptive = plan(mechanism=Tree(noise_multiplier=40.0), clipping=QuantileClipping(count_noise=50.0), **tree)
    fixed = plan(mechanism=Tree(noise_multiplier=joint), clipping=FixedClipping(1.0), **tree)
    assert adaptive.epsilon() == pytest.approx(fixed.epsilon(), rel=1e-9)
    assert (
        adaptive.epsilon() > plan(mechanism=Tree(noise_multiplier=40.0), clipping=FixedClipping(1.0), **tree).epsilon()
    )


@given(noise=st.floats(0.1, 10), count_noise=st.floats(0.5, 100), norm=st.floats(0, 1), inside=st.booleans())
def test_no_vector_with_its_count_is_longer_than_the_joint_noise_says(noise, count_noise, norm, inside):
    clipping = QuantileClipping(count_noise=count_noise)
    coordinate = noise / count_noise * (0.5 if inside else -0.5)
    assert math.hypot(norm, coordinate) <= noise / clipping.joint_noise(noise) * (1 + 1e-12)


def test_one_user_of_a_client_moves_both_parts_twice_as_far():
    """A client's vector turns into its opposite, and its indicator over: together by 2 z / joint noise."""
    clipping = QuantileClipping(count_noise=1.6)
    before, after = np.array([0.6, 0.8, 0.5]), np.array([-0.6, -0.8, -0.5])
    moved = np.linalg.norm((before - after) * [1.0, 1.0, 0.63 / 1.6])
    twice = plan(unit=User(clients=True))
    bound = twice.theorem.sensitivity(twice) * 0.63 / clipping.joint_noise(0.63)
    assert moved == pytest.approx(bound, rel=1e-12)


def test_it_follows_the_quantile():
    clipping = QuantileClipping(quantile=0.5, rate=0.2, count_noise=1.0)
    assert clipping.next_norm(2.0, 0.5) == 2.0
    assert clipping.next_norm(2.0, 1.0) == pytest.approx(2 * math.exp(-0.1))
    assert clipping.noisy_fraction(0.0, 32) == 0.5
    assert clipping.noisy_fraction(8.0, 32) == 0.75
    assert clipping.noisy_fraction(99.0, 32) == 1.0
    assert clipping.noisy_fraction(-99.0, 32) == 0.0
    norms, norm = np.random.default_rng(0).lognormal(1.0, 0.5, 1000), 0.1
    for _ in range(200):
        norm = clipping.next_norm(norm, clipping.noisy_fraction(float((norms <= norm).sum() - 500), 1000))
    assert norm == pytest.approx(np.median(norms), rel=0.02)


def test_calibration_gives_a_twentieth_of_the_batch_and_meets_the_budget():
    known = {"examples": 256, "batch_size": 256, "steps": 200, "epsilon": 4.0, "delta": 1e-4}
    adaptive = PrivacyPlan.calibrate(clipping=QuantileClipping(max_norm=0.5), **known)
    assert adaptive.clipping == QuantileClipping(max_norm=0.5, count_noise=12.8)
    fixed = PrivacyPlan.calibrate(max_norm=0.5, **known)
    assert adaptive.epsilon() <= 4.0
    assert adaptive.max_norm == 0.5
    expected = adaptive.clipping.vector_noise(fixed.noise_multiplier)
    assert adaptive.noise_multiplier == pytest.approx(expected, abs=3e-4)
    assert adaptive.noise_multiplier > fixed.noise_multiplier
    with pytest.raises(SfumatoError, match="or more count_noise"):
        PrivacyPlan.calibrate(clipping=QuantileClipping(count_noise=0.1), **known)
    with pytest.raises(SfumatoError, match="are both given"):
        PrivacyPlan.calibrate(clipping=FixedClipping(), max_norm=2.0, **known)


def test_a_plan_writes_and_reads_it():
    data = plan().to_dict()
    assert (data["quantile"], data["rate"], data["count_noise"]) == (0.5, 0.2, 1.6)
    assert PrivacyPlan.from_dict(data) == plan()
    assert plan().fingerprint != plan(clipping=QuantileClipping(count_noise=1.7)).fingerprint
    assert set(plan(clipping=FixedClipping(1.0)).to_dict()) == set(data) - {"quantile", "rate", "count_noise"}
    for wrong in ({"rate": -1.0}, {"quantile": 1.0}, {"count_noise": None}, {"count_noise": True}):
        with pytest.raises(SfumatoError):
            PrivacyPlan.from_dict(data | wrong)
    with pytest.raises(SfumatoError, match="difference"):
        PrivacyPlan.from_dict({name: value for name, value in data.items() if name != "rate"})


def test_a_statement_names_it():
    said = Statement(plan=plan(), circumstances=Circumstances()).sentence
    assert "clipping norm 1 at first and then following the 0.5 quantile of the norms, by counts with noise of" in said


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"max_norm": 0.0}, "max_norm must be positive"),
        ({"quantile": 0.0}, "quantile must lie strictly between 0 and 1"),
        ({"rate": 0.0}, "rate must be positive"),
        ({"count_noise": 0.0}, "count_noise must be positive"),
    ],
)
def test_bad_values_are_refused(fields, words):
    with pytest.raises(SfumatoError, match=words):
        QuantileClipping(**fields)
