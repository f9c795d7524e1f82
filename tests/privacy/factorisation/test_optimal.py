"""Optimal coefficients are optimal, admissible and the same each time."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.privacy.factorisation import (
    Workload,
    inverse,
    optimal_banded,
    sensitivity,
    square_root,
    toeplitz,
    toeplitz_noise,
)
from sfumato.privacy.factorisation.toeplitz import NoiseObjective

N = 600


def schedule(name: str, n: int) -> tuple[float, ...] | None:
    """Factors of the learning rate as runs have them."""
    done = np.arange(n) / n
    shapes = {
        "linear": 1 - done,
        "step": np.where(done < 0.5, 1.0, np.where(done < 0.75, 0.1, 0.01)),
        "cosine": 0.5 + 0.5 * np.cos(np.pi * done),
    }
    return None if name == "constant" else tuple(shapes[name].tolist())


WORKLOADS = {
    f"{separation} apart, momentum {momentum}, {name}": Workload(
        steps=N, separation=separation, momentum=momentum, rates=schedule(name, N)
    )
    for separation, momentum, name in [
        (N, 0.0, "constant"),
        (70, 0.9, "constant"),
        (N, 0.9, "linear"),
        (50, 0.9, "step"),
        (400, 0.5, "cosine"),
    ]
}


def error(workload: Workload, coefficients) -> float:
    noise = toeplitz_noise(workload, inverse(coefficients, workload.steps))
    return noise.all_steps * sensitivity(coefficients, workload)


def errors_nearby(workload: Workload, coefficients: np.ndarray, tries: int) -> list[float]:
    """Of random changes, small and large, that leave the coefficients admissible."""
    generator = np.random.default_rng(0)
    found = []
    for size in np.geomspace(1e-3, 0.5, tries):
        factors = np.exp(size * generator.standard_normal(len(coefficients)))
        # Every fall from one coefficient to the next is changed by a factor of its own.
        falls = -np.diff(coefficients, append=0.0) * factors
        changed = np.cumsum(falls[::-1])[::-1]
        found.append(error(workload, changed / changed[0]))
    return found


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS.keys())
def test_no_band_is_better(workload):
    found = np.array(optimal_banded(workload, 40))
    least = error(workload, found)
    assert found[0] == 1
    assert np.all(found >= 0)
    assert np.all(np.diff(found) <= 0)
    assert least < error(workload, square_root(40, momentum=workload.momentum))
    assert least < 1.001 * min(errors_nearby(workload, found, 30))


def test_the_gradient_of_the_search():
    loss = NoiseObjective(Workload(steps=40, separation=9, momentum=0.8, rates=schedule("linear", 40)))
    point = square_root(12, momentum=0.8)
    moved = [(loss(point + step)[0] - loss(point - step)[0]) / 2e-5 for step in 1e-5 * np.eye(len(point))]
    np.testing.assert_allclose(loss(point)[1], moved, rtol=1e-6, atol=1e-8)


def test_where_every_step_sees_everyone_independent_noise_is_best():
    workload = Workload(steps=100, separation=1)
    assert optimal_banded(workload, 5) == (1.0, 0.0, 0.0, 0.0, 0.0)


@given(
    steps=st.integers(1, 60),
    separation=st.integers(1, 60),
    momentum=st.floats(0.0, 0.99),
    name=st.sampled_from(["constant", "linear", "step", "cosine"]),
    bands=st.integers(1, 60),
)
@settings(max_examples=10)
def test_always_admissible_and_never_worse_than_independent(steps, separation, momentum, name, bands):
    workload = Workload(steps=steps, separation=separation, momentum=momentum, rates=schedule(name, steps))
    independent = error(workload, [1.0])
    assert error(workload, optimal_banded(workload, min(bands, steps))) <= 1.001 * independent


def test_the_digits_do_not_hang_on_where_the_search_begins(monkeypatch):
    """The search ends where the gradient is zero, so another beginning finds the same nine digits."""
    workload = Workload(steps=1024, separation=1024, momentum=0.5)
    first, root = optimal_banded(workload, 64), toeplitz.square_root
    monkeypatch.setattr(toeplitz, "square_root", lambda *given, **how: root(*given, **how) ** 1.01)
    np.testing.assert_allclose(first, optimal_banded(workload, 64), rtol=3e-9)
