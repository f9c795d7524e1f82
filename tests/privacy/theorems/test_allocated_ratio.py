"""The likelihood ratio of an epoch: in convex order above the exact one, by closed forms and by quadrature."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

from sfumato.privacy.theorems.allocated_ratio import NEGLIGIBLE, ROUNDING, Ratio, _log_of_mean, epoch_ratio, one_step


def values(ratio: Ratio) -> np.ndarray:
    return ratio.mean * np.exp(ratio.width * (ratio.first + np.arange(len(ratio.masses))))


def excess(ratio: Ratio, level: float) -> float:
    """E[(W - level)+], with what was cut off at its most."""
    return float(ratio.masses @ np.maximum(values(ratio) - level, 0)) + ratio.lost_moment


def one_excess(mu: float, level: float | np.ndarray) -> np.ndarray:
    """E[(e^N(-mu^2 / 2, mu^2) - level)+] in closed form; 1 - level where the level is negative."""
    level = np.asarray(level, float)
    logs = np.log(np.maximum(level, 1e-300))
    exact = ndtr(mu / 2 - logs / mu) - level * ndtr(-mu / 2 - logs / mu)
    return np.where(level > 0, exact, 1 - level)


def excess_of_mean(mu: float, steps: int, level: float) -> float:
    """The same of the mean of one or two of them, by the trapezoid rule over the first."""
    if steps == 1:
        return float(one_excess(mu, level))
    normal = np.linspace(-12, 12 + mu, 40_001)
    first = np.exp(mu * normal - mu**2 / 2)
    density = np.exp(-(normal**2) / 2) / math.sqrt(2 * math.pi)
    return float(np.trapezoid(density * one_excess(mu, 2 * level - first), normal)) / 2


@given(
    sigma=st.floats(0.3, 30),
    steps=st.sampled_from([1, 2]),
    spacing=st.floats(0.01, 1.0),
    height=st.floats(-3, 6),
)
@settings(max_examples=60, deadline=None)
def test_no_convex_function_has_a_smaller_mean_than_exactly(sigma, steps, spacing, height):
    mu = 1 / sigma
    ratio = epoch_ratio(mu, steps, spacing * mu)
    level = math.exp(height * mu)
    exact, found = excess_of_mean(mu, steps, level), excess(ratio, level)
    assert found >= exact * (1 - 1e-9) - 1e-14
    assert found <= exact + 0.5 * spacing**2 * mu + 1e-10


@given(sigma=st.floats(0.06, 1e6), steps=st.integers(1, 200), spacing=st.floats(0.05, 0.5), rest=st.floats(0, 1))
@settings(max_examples=40, deadline=None)
def test_mass_and_mean_are_kept_and_what_is_cut_off_is_negligible(sigma, steps, spacing, rest):
    ratio = epoch_ratio(1 / sigma, steps, spacing / sigma / math.sqrt(steps))
    larger = 1 + ROUNDING * steps
    assert ratio.masses.sum() / larger == pytest.approx(1, abs=1e-11)
    assert ratio.moments().sum() / larger == pytest.approx(1, abs=1e-11)
    assert 0 < ratio.lost < 100 * steps * NEGLIGIBLE
    assert 0 < ratio.lost_moment < 100 * steps * NEGLIGIBLE


@pytest.mark.parametrize("mu", [0.2, 1.0, 3.0])
def test_a_finer_grid_is_nowhere_above_a_coarser_one(mu):
    coarse, fine = one_step(mu, 0.2 * mu, 1.0), one_step(mu, 0.1 * mu, 1.0)
    for level in np.exp(mu * np.linspace(-6, 8, 57)):
        assert excess(fine, level) <= excess(coarse, level) * (1 + 1e-12) + 1e-18


def test_a_sum_of_two_points_lies_on_the_two_points_around_it():
    point = Ratio(3, np.array([1.0]), 0.1, 0.25, 0.0, 0.0)
    other = Ratio(-2, np.array([1.0]), 0.1, 0.5, 0.0, 0.0)
    total = point.plus(other)
    exact = 0.25 * math.exp(0.3) + 0.5 * math.exp(-0.2)
    assert total.mean == 0.75
    assert total.masses @ values(total) == pytest.approx(exact, rel=1e-14)
    assert len(total.masses) == 2
    assert values(total)[0] < exact < values(total)[1]


def test_what_is_cut_off_of_either_part_counts_in_the_sum():
    cut = Ratio(0, np.array([0.9]), 0.1, 0.25, 0.1, 0.02)
    total = cut.plus(Ratio(0, np.array([0.8]), 0.1, 0.5, 0.2, 0.3))
    assert total.lost == pytest.approx(0.1 + 0.2)
    assert total.lost_moment == pytest.approx(0.02 + 0.3 + 0.1 * 0.5 + 0.2 * 0.25)


def test_the_ends_are_cut_off_by_their_probability_with_and_without_the_unit():
    masses = np.array([1e-30, 1e-15, 1.0, 1e-28, 1e-42])
    ratio = Ratio(-2, masses, 20.0, 1.0, 0.0, 0.0).cut()
    assert (ratio.first, len(ratio.masses)) == (-1, 3)  # e^20 1e-28 is kept, e^40 1e-42 is not
    assert ratio.lost == pytest.approx(1e-30)
    assert ratio.lost_moment == pytest.approx(math.exp(40) * 1e-42, rel=1e-6)


def test_logarithms_of_means_are_exact_for_small_and_large_ones():
    for log, share in ((1e-12, 0.3), (-1e-9, 0.5), (0.5, 0.9)):
        assert _log_of_mean(np.array([log]), share)[0] == pytest.approx(math.log1p(share * math.expm1(log)), rel=1e-14)
    assert _log_of_mean(np.array([900.0]), 0.25)[0] == pytest.approx(900 + math.log(0.25), rel=1e-14)
    assert _log_of_mean(np.array([-900.0]), 0.25)[0] == pytest.approx(math.log(0.75), rel=1e-14)
