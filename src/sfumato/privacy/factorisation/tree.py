"""The noise of tree aggregation in the weights: Honaker's estimator, restarts, completion."""

from __future__ import annotations

import numpy as np

from sfumato._checks import positive_integer
from sfumato.privacy.factorisation.weights import Array, NoiseInWeights, rows
from sfumato.privacy.factorisation.workload import Workload

_ROWS = 64


def tree_noise(
    workload: Workload, *, steps_per_tree: int | None = None, completed: bool = False
) -> NoiseInWeights:
    """The noise that tree aggregation leaves in the weights, for nodes of standard deviation 1.

    Args:
        steps_per_tree: a tree ends after so many steps and another one begins; None for one tree.
        completed: a tree that ends before the run does is completed by virtual steps to the next power of two, and the
            completed noise enters with the next tree's first step.
    """
    n, squares = workload.steps, np.empty(workload.steps)
    for first in range(0, n, _ROWS):
        some = range(first, min(first + _ROWS, n))
        squares[first : first + _ROWS] = _squares(rows(workload, some), steps_per_tree, completed)
    return NoiseInWeights(all_steps=float(np.sqrt(squares.mean())), final=float(np.sqrt(squares[-1])))


def tree_covariance(steps: int, *, steps_per_tree: int | None = None, completed: bool = False) -> Array:
    """The covariance of the noise over steps, (n, n): of N_t - N_{t-1}, N_t the noise of the prefix sum."""
    parts = list(_nodes(np.eye(steps), steps_per_tree, completed))
    return sum((part @ part.T for part in parts), np.zeros((steps, steps)))


def _squares(weights: Array, steps_per_tree: int | None, completed: bool) -> Array:
    """The variance of each row's weighted sum of the noise of the steps."""
    return sum((np.square(part).sum(1) for part in _nodes(weights, steps_per_tree, completed)), np.zeros(len(weights)))


def _nodes(weights: Array, steps_per_tree: int | None, completed: bool):
    """How much of every node is in sum_t weights[:, t] x_t, x the noise of the steps: (rows, nodes) for each level.

    Steps after a tree's last one have weight 0; virtual ones that of the step in which the next tree begins.
    """
    n = weights.shape[1]
    length = n if steps_per_tree is None else positive_integer("steps_per_tree", steps_per_tree)
    for first in range(0, n, length):
        own = weights[:, first : first + length]
        leaves = 1 << (own.shape[1] - 1).bit_length()
        after = weights[:, first + length, None] if completed and first + length < n else np.zeros((len(weights), 1))
        yield from _levels(np.hstack([own, np.repeat(after, leaves - own.shape[1], axis=1)]))


def _levels(weights: Array):
    """The same for one tree over 2^H leaves, from the root down.

    Honaker (DP-FTRL, Kairouz et al. 2021, arXiv 2103.00039, appendix D): a node's estimate is its own noise plus half
    of its children's, and in the sum, over the nodes of a step's binary expansion, it is divided by 2 - 2^-height. The
    left node that ends at leaf e stays in the sum until its sibling ends at f: x_t summed with weights a_t holds it
    (a_e - a_f) / (2 - 2^-height) times. A right one never comes in, but through its parent, by half.
    """
    height = weights.shape[1].bit_length() - 1
    inherited = np.zeros((len(weights), 1))
    for level in range(height, -1, -1):
        ends = weights[:, (1 << level) - 1 :: 1 << level]
        held = inherited.copy()
        held[:, ::2] += (ends[:, ::2] - (ends[:, 1::2] if level < height else 0.0)) / (2 - 2.0**-level)
        yield held
        inherited = np.repeat(held, 2, axis=1) / 2
