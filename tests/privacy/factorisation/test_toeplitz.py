"""Errors and sensitivities of Toeplitz factorisations against dense matrices, and the table of known figures."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato import SfumatoError
from sfumato.privacy.factorisation import (
    Workload,
    inverse,
    optimal_banded,
    sensitivity,
    square_root,
    toeplitz_covariance,
    toeplitz_noise,
    tree_noise,
)
from sfumato.privacy.factorisation.toeplitz import MeanSquare, rows, squared_sensitivity

ONCE = Workload(steps=1024, separation=1024)
EIGHT_TIMES = Workload(steps=1024, separation=128)


# -- the slow truth ----------------------------------------------------------------------------------------------------


def by_running(workload: Workload) -> np.ndarray:
    """A, from running heavy-ball SGD on one gradient at a time."""
    n = workload.steps
    found = np.zeros((n, n))
    for s in range(n):
        velocity = weight = 0.0
        for t in range(n):
            velocity = workload.momentum * velocity + (t == s)
            weight += (1.0 if workload.rates is None else workload.rates[t]) * velocity
            found[t, s] = weight
    return found


def dense(coefficients, n: int) -> np.ndarray:
    """The lower triangular Toeplitz matrix C."""
    return sum((value * np.eye(n, k=-k) for k, value in enumerate(coefficients[:n])), np.zeros((n, n)))


def over_all_choices(strategy: np.ndarray, separation: int) -> float:
    """The largest norm of a sum of columns that are at least `separation` apart."""
    worst, chosen = 0.0, [(0, np.zeros(len(strategy)))]
    while chosen:
        first, moved = chosen.pop()
        worst = max(worst, float(np.linalg.norm(moved)))
        chosen += [(step + separation, moved + strategy[:, step]) for step in range(first, len(strategy))]
    return worst


@st.composite
def workloads(draw) -> Workload:
    """Any momentum, any schedule, any separation, of few steps."""
    n = draw(st.integers(1, 24))
    rates = draw(st.none() | st.lists(st.floats(0.01, 1.0), min_size=n, max_size=n).map(tuple))
    momentum = draw(st.sampled_from([0.0, 0.9]) | st.floats(0.0, 0.99))
    return Workload(steps=n, separation=draw(st.integers(1, n + 2)), momentum=momentum, rates=rates)


def falling(values: list[float]) -> np.ndarray:
    """Coefficients from 1 down."""
    return np.append(1.0, np.cumprod(values))


# -- exactness ---------------------------------------------------------------------------------------------------------


@given(workload=workloads(), ratios=st.lists(st.floats(0.0, 1.0), max_size=30))
@settings(max_examples=60)
def test_noise_in_weights_is_that_of_the_dense_matrices(workload, ratios):
    n = workload.steps
    matrix = by_running(workload)
    np.testing.assert_allclose(rows(workload, range(n)), matrix, rtol=1e-10, atol=1e-12)
    inverted = np.linalg.inv(dense(falling(ratios), n))
    found = inverse(falling(ratios), n)
    np.testing.assert_allclose(found, inverted[:, 0], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(toeplitz_covariance(found), inverted @ inverted.T, rtol=1e-9, atol=1e-9)
    noise = toeplitz_noise(workload, found)
    assert noise.all_steps == pytest.approx(np.linalg.norm(matrix @ inverted) / np.sqrt(n), rel=1e-9)
    assert noise.final == pytest.approx(np.linalg.norm((matrix @ inverted)[-1]), rel=1e-9)


@given(n=st.integers(1, 9), separation=st.integers(1, 10), ratios=st.lists(st.floats(0.0, 1.0), max_size=12))
@settings(max_examples=40)
def test_sensitivity_is_the_worst_of_all_choices(n, separation, ratios):
    found = sensitivity(falling(ratios), Workload(steps=n, separation=separation))
    assert found == pytest.approx(over_all_choices(dense(falling(ratios), n), separation))


@pytest.mark.parametrize("pieces", [1, 3, 64])
def test_gradients_are_those_of_differences(pieces):
    generator = np.random.default_rng(0)
    rates = tuple(np.r_[np.linspace(0.2, 1, 5), np.linspace(1, 0.5, 10), np.full(10, 0.1)].tolist())
    workload = Workload(steps=25, separation=7, momentum=0.8, rates=rates)
    mean_square = MeanSquare(workload, pieces=pieces)
    point = generator.standard_normal(25)
    for function in (mean_square, lambda values: squared_sensitivity(values, workload)):
        moved = [(function(point + step)[0] - function(point - step)[0]) / 2e-4 for step in 1e-4 * np.eye(25)]
        np.testing.assert_allclose(function(point)[1], moved, rtol=1e-6, atol=1e-6)


# -- known figures: root mean square error of prefix sums times sensitivity, n = 1024 ----------------------------------


def error(workload: Workload, coefficients) -> float:
    noise = toeplitz_noise(workload, inverse(coefficients, workload.steps))
    return noise.all_steps * sensitivity(coefficients, workload)


@pytest.mark.parametrize(
    ("workload", "coefficients", "figure"),
    [
        (ONCE, lambda: [1.0], 22.638),
        (EIGHT_TIMES, lambda: [1.0], 64.031),
        (ONCE, lambda: square_root(1024), 3.110),
        (EIGHT_TIMES, lambda: square_root(128), 10.294),
        (EIGHT_TIMES, lambda: optimal_banded(EIGHT_TIMES, 128), 9.965),
    ],
)
def test_rows_of_the_table(workload, coefficients, figure):
    assert error(workload, coefficients()) == pytest.approx(figure, rel=1e-4)


# -- refusals ----------------------------------------------------------------------------------------------------------

EIGHT = Workload(steps=8, separation=4)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"steps": 0}, "steps must be at least 1"),
        ({"momentum": 1.0}, "momentum must be below 1, got 1.0"),
        ({"rates": (1.0,) * 7}, "rates must be a tuple of 8 factors, got 7 of them"),
        ({"rates": (1.0,) * 7 + (0.0,)}, "rates must be positive"),
    ],
)
def test_refusals_of_a_workload(changed, words):
    with pytest.raises(SfumatoError, match=words):
        Workload(**{"steps": 8, "separation": 4, **changed})


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda: optimal_banded(EIGHT, 9), "bands must be at most 8, got 9"),
        (lambda: square_root(0), "bands must be at least 1"),
        (lambda: sensitivity([1.0, 0.5, 0.6], EIGHT), "coefficients must be at least 0 and must not increase"),
        (lambda: sensitivity([1.0, float("nan")], EIGHT), "coefficients must be at least 0"),
        (lambda: tree_noise(EIGHT, steps_per_tree=0), "steps_per_tree must be at least 1"),
    ],
)
def test_refusals_of_what_is_asked(ask, words):
    with pytest.raises(SfumatoError, match=words):
        ask()
