"""One shot: the null in closed form, and two Gaussians told apart."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from sfumato import SfumatoError
from sfumato.audit import epsilon_of, one_shot
from sfumato.audit.one_shot import _delta, epsilon_between


@given(mean=st.floats(-3, 3), scale=st.floats(0.3, 3), epsilon=st.floats(0, 3))
@settings(max_examples=15, deadline=None)
def test_delta_of_two_gaussians_is_the_integral(mean, scale, epsilon):
    first, second = norm(mean, scale), norm(0, 1)
    grid = np.linspace(-20, 20, 20_001)
    wanted = np.maximum(first.pdf(grid) - np.exp(epsilon) * second.pdf(grid), 0).sum() * (grid[1] - grid[0])
    assert _delta((mean, scale), (0.0, 1.0), epsilon) == pytest.approx(wanted, abs=1e-3)


def test_equal_scales_are_the_gaussian_curve():
    assert epsilon_between(1.5, 1.0, 1e-5) == pytest.approx(epsilon_of(1.5, 1e-5), rel=1e-6)


def test_random_directions_have_the_cosines_of_the_null():
    random = np.random.default_rng(0)
    directions = random.normal(size=(2000, 400))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    released = random.normal(size=400)
    found = one_shot(directions @ released / np.linalg.norm(released), dimensions=400, delta=1e-5)
    assert found.observations["deviation"] == pytest.approx(1, abs=0.06)
    assert found.observations["mean"] == pytest.approx(0, abs=0.08)


def test_it_is_an_estimate_of_the_right_size():
    """Sum of 1,000 unit canaries and noise of standard deviation 1 in 100,000 dimensions: each has mu of about 1."""
    mu, d = 1.0, 100_000
    random = np.random.default_rng(1)
    cosines = random.normal(mu, 1, 4000) / np.sqrt(d)
    found = one_shot(cosines, dimensions=d, delta=1e-5)
    assert found.epsilon == pytest.approx(epsilon_of(mu, 1e-5), rel=0.15)
    assert found.confidence is None
    assert not found.proven
    assert not found.refutes(0.0)
    assert "an estimate, without any confidence" in found.sentence


def test_cosines_beyond_1_are_refused():
    with pytest.raises(SfumatoError, match="cosines must be at least two numbers"):
        one_shot([0.1, 1.2], dimensions=10, delta=1e-5)
