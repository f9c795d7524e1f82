"""Tree aggregation: S^2 against the matrix of all nodes, published figures, and what any such figure obeys."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.privacy import FixedOrder, FullBatch, PrivacyPlan, Tree
from sfumato.privacy.theorems.composed_gaussian import OneGaussian, squared_tree_sensitivity


def plan(steps: int, gap: int, z: float = 1.0, delta: float = 1e-5, **tree) -> PrivacyPlan:
    participation = FixedOrder(batch_size=10) if gap > 1 else FullBatch()
    mechanism = Tree(noise_multiplier=z, **tree)
    return PrivacyPlan(population=10 * gap, participation=participation, mechanism=mechanism, steps=steps, delta=delta)


def nodes(steps: int, leaves: int) -> np.ndarray:
    """One row for each complete node of a tree, one column for each step: the matrix C, built node by node."""
    rows = []
    width = 1
    while width <= leaves:
        for start in range(0, leaves - width + 1, width):
            row = np.zeros(leaves)
            row[start : start + width] = 1
            rows.append(row[:steps])
        width *= 2
    return np.array(rows)


def trees(steps: int, steps_per_tree: int | None, completed: bool) -> list[np.ndarray]:
    length = steps_per_tree or steps
    lengths = [min(length, steps - start) for start in range(0, steps, length)]
    powers = [next(2**power for power in range(20) if 2**power >= each) for each in lengths]
    leaves = [*(powers[:-1] if completed else lengths[:-1]), lengths[-1]]
    return [nodes(each, many) for each, many in zip(lengths, leaves, strict=True)]


def by_matrix(steps: int, gap: int, steps_per_tree: int | None = None, completed: bool = False) -> float:
    """max over units of ||C x||^2, x one in the unit's steps; of all trees below each other."""
    blocks = trees(steps, steps_per_tree, completed)
    found = []
    for first in range(gap):
        taken = np.array([float(step % gap == first) for step in range(steps)])
        total, start = 0.0, 0
        for block in blocks:
            moved = block @ taken[start : start + block.shape[1]]
            total += moved @ moved
            start += block.shape[1]
        found.append(total)
    return max(found)


@given(
    steps=st.integers(1, 70),
    gap=st.integers(1, 40),
    steps_per_tree=st.none() | st.integers(1, 40),
    completed=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_the_matrix_of_all_nodes(steps, gap, steps_per_tree, completed):
    completed = completed and steps_per_tree is not None
    expected = by_matrix(steps, gap, steps_per_tree, completed)
    assert squared_tree_sensitivity(steps, gap, steps_per_tree, completed) == expected
    found = plan(steps, gap, steps_per_tree=steps_per_tree, completed=completed)
    assert found.theorem.squared_sensitivity(found, steps) == expected


def test_a_gap_is_not_a_separation():
    """tf-privacy's minsep is one less than the gap: the one read for the other gives 20 for 11, or 11 for 20."""
    assert (squared_tree_sensitivity(9, 3), squared_tree_sensitivity(9, 4), squared_tree_sensitivity(9, 5)) == (
        20,
        11,
        10,
    )
    assert by_matrix(9, 5) == 10


@pytest.mark.parametrize("steps", [1, 2, 3, 100, 1600, 100_000])
def test_one_participation_moves_one_node_of_each_height(steps):
    assert squared_tree_sensitivity(steps, steps) == steps.bit_length()


def test_the_dp_ftrl_command_for_cifar_10():
    """z = 46.3, 100 epochs of 100 steps, a tree for every 20 of them: S^2 is five times 425, or 926 if completed."""
    restarted = plan(10_000, 100, 46.3, steps_per_tree=2000)
    assert restarted.theorem.squared_sensitivity(restarted, 10_000) == 5 * 425
    assert restarted.epsilon() == pytest.approx(4.36, abs=0.005)
    completed = replace(restarted, mechanism=Tree(noise_multiplier=46.3, steps_per_tree=2000, completed=True))
    assert completed.theorem.squared_sensitivity(completed, 10_000) == 4 * 926 + 425
    assert completed.theorem.squared_sensitivity(completed, 10_001) >= 5 * 926
    last = OneGaussian(precision=(926 - 425) / 46.3**2)
    all_five = completed.loss.composed_with(replace(completed.loss, parts=(last,)))
    assert all_five.epsilon(1e-5) == pytest.approx(6.88, abs=0.005)


def test_a_single_epoch_row():
    one = plan(1600, 1600, 1.13, 1e-6)
    assert one.epsilon() == pytest.approx(17.67, abs=0.005)
    assert one.epsilon(accountant="rdp") == pytest.approx(18.71, abs=0.005)


def test_a_prefix_has_a_loss_of_its_own():
    run = plan(64, 16, 4.0)
    assert run.epsilon(steps=32) == plan(32, 16, 4.0).epsilon() < run.epsilon()
