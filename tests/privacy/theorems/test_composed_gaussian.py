"""Toeplitz-correlated noise: S^2 against all patterns of participation, and figures of the literature."""

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.privacy import BandedToeplitz, FixedOrder, FullBatch, Gaussian, PrivacyPlan
from sfumato.privacy.theorems.composed_gaussian import OneGaussian, squared_sensitivity


def matrix(column: np.ndarray) -> np.ndarray:
    steps = len(column)
    return np.array([[column[row - col] if row >= col else 0.0 for col in range(steps)] for row in range(steps)])


def patterns(steps: int, gap: int, first: int = 0) -> Iterator[list[int]]:
    """All sets of steps that are at least `gap` apart."""
    yield []
    for step in range(first, steps):
        for rest in patterns(steps, gap, step + gap):
            yield [step, *rest]


def by_patterns(column: np.ndarray, gap: int) -> float:
    """The largest ||C u||^2, u of one sign or the other in each step of a pattern."""
    dense = matrix(column)
    return max(
        float(np.sum((dense[:, taken] @ np.array(signs)) ** 2))
        for taken in patterns(len(column), gap)
        for signs in itertools.product((-1.0, 1.0), repeat=len(taken))
    )


@given(values=st.lists(st.floats(0, 1), min_size=0, max_size=7), gap=st.integers(1, 8))
@settings(max_examples=80, deadline=None)
def test_all_patterns_of_a_falling_column(values, gap):
    column = np.array([1.0, *sorted(values, reverse=True)])
    assert squared_sensitivity(column, gap) == pytest.approx(by_patterns(column, gap), rel=1e-12)


@given(values=st.lists(st.floats(-1.5, 1.5), min_size=0, max_size=5), gap=st.integers(1, 7))
@settings(max_examples=80, deadline=None)
def test_no_pattern_of_any_column_moves_more(values, gap):
    column = np.array([1.0, *values])
    assert squared_sensitivity(column, gap) >= by_patterns(column, gap) * (1 - 1e-12)


def test_a_rising_column_is_bounded_by_its_running_maximum():
    assert squared_sensitivity(np.array([1.0, 0.2, -2.0, 0.5]), 2) == 4 + 4 + (2 + 2) ** 2 + (0.5 + 2) ** 2


def plan(participation, mechanism, steps=60) -> PrivacyPlan:
    return PrivacyPlan(population=1000, participation=participation, mechanism=mechanism, steps=steps, delta=1e-5)


@pytest.mark.parametrize("participation", [FullBatch(), FixedOrder(batch_size=100), FixedOrder(batch_size=30)])
def test_one_band_is_independent_noise(participation):
    banded = BandedToeplitz(noise_multiplier=5.0, coefficients=(1.0,))
    independent = plan(participation, Gaussian(noise_multiplier=5.0))
    assert plan(participation, banded).epsilon() == pytest.approx(independent.epsilon(), rel=1e-12)
    gap = participation.gap(1000)
    times = sum(step % gap == 0 for step in range(60))
    assert independent.epsilon() == pytest.approx(OneGaussian(precision=times / 25).epsilon(1e-5), rel=1e-12)


def test_a_prefix_has_a_loss_of_its_own():
    mechanism = BandedToeplitz(noise_multiplier=1.0, coefficients=(1.0, 0.5, 0.375))
    whole = plan(FixedOrder(batch_size=100), mechanism).with_noise(5.0)
    part = plan(FixedOrder(batch_size=100), mechanism, steps=25).with_noise(5.0)
    assert whole.epsilon(steps=25) == part.epsilon() < whole.epsilon()
    expected = squared_sensitivity(mechanism.column(60), 10) / 25
    assert whole.loss.parts == (OneGaussian(precision=expected),)
