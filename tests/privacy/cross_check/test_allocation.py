"""The second accountant's epochs of random allocation: on either side of the exact ones, by closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

from sfumato.privacy.cross_check.allocation import Ratios, epoch_losses, epoch_ratios


def one_excess(mu: float, level: np.ndarray) -> np.ndarray:
    """E[(e^N(-mu^2 / 2, mu^2) - level)+] in closed form; 1 - level where the level is negative."""
    logs = np.log(np.maximum(level, 1e-300))
    return np.where(level > 0, ndtr(mu / 2 - logs / mu) - level * ndtr(-mu / 2 - logs / mu), 1 - level)


def excess_of_mean(mu: float, steps: int, level: float) -> float:
    """The same of the mean of one or two, by the trapezoid rule over the first."""
    normal = np.linspace(-12, 12 + mu, 20_001)
    density = np.exp(-(normal**2) / 2) / math.sqrt(2 * math.pi)
    first = np.exp(mu * normal - mu**2 / 2)
    of_two = np.trapezoid(density * one_excess(mu, 2 * level - first), normal) / 2
    return float(one_excess(mu, np.array(level)) if steps == 1 else of_two)


@given(sigma=st.floats(0.3, 30), steps=st.sampled_from([1, 2]), height=st.floats(-3, 6))
@settings(max_examples=40, deadline=None)
def test_every_convex_function_s_mean_lies_between_the_two(sigma, steps, height):
    mu, level = 1 / sigma, math.exp(height / sigma)
    exact = excess_of_mean(mu, steps, level)
    lower, upper = (
        float(one.masses @ np.maximum(one.values - level, 0))
        for one in (epoch_ratios(sigma, steps, s) for s in (False, True))
    )
    assert lower <= exact * (1 + 1e-9) + 1e-13
    assert upper >= exact * (1 - 1e-9) - 1e-13
    assert upper - lower <= 1e-3 * mu


@pytest.mark.parametrize("above", [False, True])
@pytest.mark.parametrize(("sigma", "steps"), [(1.0, 13), (0.4, 50), (5.0, 3)])
def test_mass_and_mean_are_kept_and_little_is_lost(sigma, steps, above):
    ratios = epoch_ratios(sigma, steps, above)
    assert ratios.masses.sum() == pytest.approx(1, abs=1e-12)
    assert ratios.masses @ ratios.values == pytest.approx(1, abs=1e-12)
    assert 0 < ratios.lost < 1e-18
    assert 0 < ratios.lost_moment < 1e-18


def test_what_either_part_has_lost_counts_in_the_sum():
    one = Ratios(np.array([1.0]), np.array([0.9]), 0.1, 0.02)
    total = one.plus(Ratios(np.array([2.0]), np.array([0.8]), 0.2, 0.3), above=False)
    assert total.lost == pytest.approx(0.1 + 0.2)
    assert total.lost_moment == pytest.approx(0.02 + 0.3 + 0.1 * 1.6 + 0.2 * 0.9)
    assert total.values.tolist() == pytest.approx([3.0])


def test_losses_ascend_in_both_directions():
    for removed in (True, False):
        losses, chances, lost = epoch_losses(1.0, 5, removed, above=True)
        assert (np.diff(losses) > 0).all()
        assert chances.sum() + lost == pytest.approx(1, abs=1e-12)
    without = epoch_losses(1.0, 5, False, above=True)[:2]
    assert float(np.exp(-without[0]) @ without[1]) == pytest.approx(1, abs=1e-12)
