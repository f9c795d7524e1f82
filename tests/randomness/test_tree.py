"""Tree noise against all nodes and least squares; restarts, completion; and DP-FTRL as it was published."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato import Noise, RunKey
from sfumato.privacy.mechanism import Tree
from sfumato.randomness.noise.blocks import TreeNoise

LIMIT = 5.5


def weights(tree: Tree, steps: int) -> np.ndarray:
    """N of each step as sums of the fresh numbers, (steps, 2 steps): of the steps themselves, then of completions."""
    rule, units = TreeNoise(tree), np.eye(2 * steps)
    kept, increments = np.zeros((tree.buffers(steps), 2 * steps)), []
    for step in range(steps):
        rows = {"noise": units[step], "completion": units[steps + step]}
        increments.append(rule.noise(step, lambda stream, rows=rows: rows[stream].copy(), kept))
    return np.cumsum(increments, axis=0)


def by_all_nodes(tree: Tree, steps: int) -> np.ndarray:
    """The covariance of N over the steps, by least squares on all nodes of each complete subtree."""
    leaves = tree.steps_per_tree or steps
    size = 1 << (leaves - 1).bit_length()
    nodes = [(height, place) for height in range(size.bit_length()) for place in range(size >> height)]
    numbers = len(nodes) * (-(-steps // leaves))
    before, found = np.zeros(numbers), []
    for step in range(steps):
        number, position = divmod(step, leaves)
        if number and not position:
            last = leaf_sums(size if tree.completed else leaves, nodes)
            before[(number - 1) * len(nodes) : number * len(nodes)] = last
        row = before.copy()
        row[number * len(nodes) : (number + 1) * len(nodes)] = leaf_sums(position + 1, nodes)
        found.append(row)
    return np.array(found) @ np.array(found).T


def leaf_sums(count: int, nodes: list[tuple[int, int]]) -> np.ndarray:
    """How Honaker's estimate of the first `count` leaves' sum weights the nodes."""
    row, start = np.zeros(len(nodes)), 0
    for height in reversed(range(count.bit_length())):
        if count >> height & 1:
            end = start + (1 << height)
            within = [place for place, (level, index) in enumerate(nodes) if start <= index << level < end]
            within = [place for place in within if (nodes[place][1] + 1) << nodes[place][0] <= end]
            sums = np.array(
                [[nodes[place][1] == leaf >> nodes[place][0] for leaf in range(start, end)] for place in within], float
            )
            row[within] = np.ones(end - start) @ np.linalg.pinv(sums)
            start = end
    return row


trees = st.builds(
    lambda leaves, completed: Tree(
        noise_multiplier=1.0, steps_per_tree=leaves, completed=completed and leaves is not None
    ),
    st.none() | st.integers(1, 17),
    st.booleans(),
)


@given(tree=trees, steps=st.integers(1, 36))
@settings(max_examples=20, deadline=None)
def test_the_law_is_that_of_a_tree_with_a_number_in_each_node(tree, steps):
    """One number is drawn in a step, for all nodes that it completes: the covariance of all N_t is the same."""
    rows = weights(tree, steps)
    assert np.allclose(rows @ rows.T, by_all_nodes(tree, steps), atol=1e-12)


def test_the_variance_is_honaker_s():
    rows = weights(Tree(noise_multiplier=1.0), 64)
    variance = (rows**2).sum(1)
    for height in range(7):
        assert variance[2**height - 1] == pytest.approx(1 / (2 - 2.0**-height), rel=1e-12)
    for steps in range(1, 65):
        heights = [height for height in range(7) if steps >> height & 1]
        assert variance[steps - 1] == pytest.approx(sum(1 / (2 - 2.0**-height) for height in heights), rel=1e-12)


def test_a_restart_leaves_what_was_and_begins_with_nothing():
    rows = weights(Tree(noise_multiplier=1.0, steps_per_tree=6), 12)
    later = rows[6:] - rows[5]
    assert np.abs(later @ rows[:6].T).max() < 1e-12
    assert np.allclose(later @ later.T, rows[:6] @ rows[:6].T, atol=1e-12)


def test_a_completed_tree_is_estimated_from_its_root_with_the_first_step_of_the_next():
    rows = weights(Tree(noise_multiplier=1.0, steps_per_tree=6, completed=True), 7)
    assert (rows[5] ** 2).sum() == pytest.approx(1 / 1.5 + 1 / 1.75)
    assert (rows[6] ** 2).sum() == pytest.approx(1 / (2 - 2.0**-3) + 1)
    assert not rows[:6, 7:].any()
    full = weights(Tree(noise_multiplier=1.0, steps_per_tree=8, completed=True), 20)
    assert np.array_equal(full, weights(Tree(noise_multiplier=1.0, steps_per_tree=8), 20))


def test_the_noise_has_this_law_and_no_other():
    """4,000 replays: one key, coordinates in place of keys."""
    tree, steps, size = Tree(noise_multiplier=3.0, steps_per_tree=5, completed=True), 12, 4000
    noise = Noise(tree, max_norm=0.5, key=RunKey.from_seed(1))
    state, found = noise.begin(), []
    for step in range(steps):
        noisy, state = noise.add({"a": torch.zeros(size)}, step, state)
        found.append(noisy["a"].double().numpy() / 1.5)
    prefix = np.cumsum(found, axis=0)

    def fits(tree: Tree) -> bool:
        covariance = by_all_nodes(tree, steps)
        scale = np.sqrt((np.outer(np.diag(covariance), np.diag(covariance)) + covariance**2) / size)
        return bool((np.abs(prefix @ prefix.T / size - covariance) < LIMIT * scale).all())

    assert fits(tree)
    for wrong in ({}, {"steps_per_tree": 5}, {"steps_per_tree": 6, "completed": True}, {"steps_per_tree": 1}):
        assert not fits(Tree(noise_multiplier=3.0, **wrong)), wrong


@pytest.mark.parametrize(
    "tree",
    [
        Tree(noise_multiplier=0.7),
        Tree(noise_multiplier=0.7, steps_per_tree=7),
        Tree(noise_multiplier=0.7, steps_per_tree=7, completed=True),
    ],
)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_dp_ftrl_is_sgd_with_momentum_and_this_noise(tree, momentum):
    """Kairouz et al. 2021, algorithm 1 with momentum: v_t = m v_{t-1} + G_t + N_t, w_t = w_0 - lr v_t; a restart
    leaves the (completed) noise in the sum, and momentum carries on."""
    steps, size, rate, key = 30, 5, 0.05, RunKey.from_seed(2)
    gradients = np.random.default_rng(0).normal(size=(steps, size))
    streams = [
        key.generator(stream, step, "w").standard_normal(size)
        for stream in ("noise", "completion")
        for step in range(steps)
    ]
    prefix_noise = 0.7 * weights(tree, steps) @ np.array(streams)

    start = torch.linspace(-1, 1, size, dtype=torch.float64)
    weight = torch.nn.Parameter(start.clone())
    optimizer = torch.optim.SGD([weight], lr=rate, momentum=momentum)
    noise = Noise(tree, max_norm=1.0, key=key)
    state, velocity = noise.begin(), np.zeros(size)
    for step in range(steps):
        noisy, state = noise.add({"w": torch.from_numpy(gradients[step])}, step, state)
        weight.grad = noisy["w"].double()
        optimizer.step()
        velocity = momentum * velocity + gradients[: step + 1].sum(0) + prefix_noise[step]
        published = start.numpy() - rate * velocity
        assert np.allclose(weight.detach().numpy(), published, rtol=0, atol=1e-5 * math.sqrt(step + 1))
