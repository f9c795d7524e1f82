"""Optimal coefficients are optimal, admissible and the same each time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.privacy.factorisation import (
    Workload,
    blt_coefficients,
    inverse,
    optimal_banded,
    optimal_blt,
    sensitivity,
    square_root,
    toeplitz_noise,
)

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


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS.keys())
def test_no_blt_is_better(workload):
    scales, decays = (np.array(values) for values in optimal_blt(workload, 2))
    coefficients = blt_coefficients(scales, decays, N)
    least = error(workload, coefficients)
    assert np.all(scales > 0)
    assert np.all((decays > 0) & (decays < 1))
    assert np.all(np.diff(coefficients) <= 0)
    assert np.abs(inverse(coefficients, N)).max() == 1
    assert least < error(workload, [1.0])
    generator = np.random.default_rng(0)
    for size in np.geomspace(1e-3, 0.5, 30):
        gaps, changed = (1 - decays), scales * np.exp(size * generator.standard_normal(len(scales)))
        gaps = np.minimum(gaps * np.exp(size * generator.standard_normal(len(gaps))), 1.0)
        if changed.sum() <= 1:
            assert least < 1.001 * error(workload, blt_coefficients(changed, 1 - gaps, N))


def test_gradients_of_both_searches():
    from sfumato.privacy.factorisation import banded, blt
    from sfumato.privacy.factorisation.objective import NoiseObjective

    objective = NoiseObjective(Workload(steps=40, separation=9, momentum=0.8, rates=schedule("linear", 40)))
    for loss, point in [
        (banded._loss, square_root(12, momentum=0.8)),
        (blt._loss, np.array([-2.0, -0.5, 0.3, 1.0])),
    ]:
        steps = 1e-5 * np.eye(len(point))
        moved = [(loss(objective, point + step)[0] - loss(objective, point - step)[0]) / 2e-5 for step in steps]
        np.testing.assert_allclose(loss(objective, point)[1], moved, rtol=1e-6, atol=1e-8)


def test_where_every_step_sees_everyone_independent_noise_is_best():
    workload = Workload(steps=100, separation=1)
    assert optimal_banded(workload, 5) == (1.0, 0.0, 0.0, 0.0, 0.0)
    (scale,), _ = optimal_blt(workload, 3)
    assert 0 < scale < 1e-3


def test_more_buffers_are_better_until_they_are_not_worth_it():
    once = Workload(steps=1024, separation=1024)
    one, two, three = (error(once, blt_coefficients(*optimal_blt(once, buffers), 1024)) for buffers in (1, 2, 3))
    assert one > 1.05 * two > 1.05 * three
    often = Workload(steps=1024, separation=128)
    assert len(optimal_blt(often, 4)[0]) == 2
    assert optimal_blt(often, 4) == optimal_blt(often, 2)
    # A second buffer would lower the error by 4 in 100,000.
    assert len(optimal_blt(Workload(steps=600, separation=40, momentum=0.8), 2)[0]) == 1


@given(
    steps=st.integers(1, 60),
    separation=st.integers(1, 60),
    momentum=st.floats(0.0, 0.99),
    name=st.sampled_from(["constant", "linear", "step", "cosine"]),
    buffers=st.integers(1, 4),
    bands=st.integers(1, 60),
)
@settings(max_examples=10)
def test_always_admissible_and_never_worse_than_independent(steps, separation, momentum, name, buffers, bands):
    workload = Workload(steps=steps, separation=separation, momentum=momentum, rates=schedule(name, steps))
    scales, decays = optimal_blt(workload, buffers)
    coefficients = blt_coefficients(scales, decays, steps)
    assert all(scale > 0 for scale in scales)
    assert all(0 < decay < 1 for decay in decays)
    independent = error(workload, [1.0])
    assert error(workload, coefficients) <= 1.001 * independent
    assert error(workload, optimal_banded(workload, min(bands, steps))) <= 1.001 * independent


def test_the_digits_do_not_hang_on_where_the_search_begins(monkeypatch):
    """The search ends where the gradient is zero, so another beginning finds the same nine digits."""
    from sfumato.privacy.factorisation import banded, blt

    workload = Workload(steps=1024, separation=1024, momentum=0.5)
    first = optimal_blt(workload, 3), optimal_banded(workload, 64)
    start, root = blt._start, banded.square_root
    monkeypatch.setattr(blt, "_start", lambda *given: start(*given) + 0.1)
    monkeypatch.setattr(banded, "square_root", lambda *given, **how: root(*given, **how) ** 1.01)
    second = optimal_blt(workload, 3), optimal_banded(workload, 64)
    for one, other in zip((*first[0], first[1]), (*second[0], second[1]), strict=True):
        np.testing.assert_allclose(one, other, rtol=3e-9)
