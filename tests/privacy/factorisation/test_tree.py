"""The noise of trees against running Honaker's estimator, node by node."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.privacy.factorisation import Workload, tree_noise
from sfumato.privacy.factorisation.toeplitz import rows


def by_running(steps: int, per_tree: int, completed: bool) -> np.ndarray:
    """The covariance over steps, with a symbol for the noise of every node."""
    symbols, before, prefixes = iter(np.eye(8 * steps + 8)), np.zeros(8 * steps + 8), []
    for first in range(0, steps, per_tree):
        held: list[tuple[int, np.ndarray]] = []
        size, leaf, noise = min(per_tree, steps - first), 0, before
        while leaf < size or (completed and first + size < steps and leaf & (leaf - 1)):
            height, node = 0, next(symbols)
            while held and held[-1][0] == height:
                height, node = height + 1, next(symbols) + (held.pop()[1] + node) / 2
            held.append((height, node))
            noise = before + sum(value / (2 - 2.0**-high) for high, value in held)
            leaf += 1
            if leaf <= size:
                prefixes.append(noise)
        before = noise
    moved = np.diff(np.array(prefixes), axis=0, prepend=0.0)
    return moved @ moved.T


@given(
    rates=st.lists(st.floats(0.01, 1.0), min_size=1, max_size=40).map(tuple),
    momentum=st.floats(0.0, 0.99),
    per_tree=st.none() | st.integers(1, 40),
    completed=st.booleans(),
)
@settings(max_examples=30)
def test_noise_in_weights(rates, momentum, per_tree, completed):
    workload = Workload(steps=len(rates), separation=1, momentum=momentum, rates=rates)
    matrix = rows(workload, range(len(rates)))
    truth = np.diag(matrix @ by_running(len(rates), per_tree or len(rates), completed) @ matrix.T)
    found = tree_noise(workload, steps_per_tree=per_tree, completed=completed)
    assert found.all_steps == pytest.approx(np.sqrt(truth.mean()), rel=1e-9)
    assert found.final == pytest.approx(np.sqrt(truth[-1]), rel=1e-9)


def test_rows_of_the_table():
    """S^2 = 11 for one participation among 1,024; 176 for eight, 128 apart."""
    noise = tree_noise(Workload(steps=1024, separation=1024)).all_steps
    assert noise * 11**0.5 == pytest.approx(5.65, abs=5e-3)
    assert noise * 176**0.5 == pytest.approx(22.6, abs=5e-3)
