"""The noise of tree aggregation in the weights: Honaker's estimator, restarts, completion."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sfumato._checks import positive_integer
from sfumato.privacy.factorisation.toeplitz import Array, NoiseInWeights, Workload, rates_of, with_momentum

Steps = NDArray[np.int64]


def tree_noise(workload: Workload, *, steps_per_tree: int | None = None, completed: bool = False) -> NoiseInWeights:
    """The noise that tree aggregation leaves in the weights, for nodes of standard deviation 1. O(n log n).

    Args:
        steps_per_tree: the number of steps after which a tree ends and the next one begins; None for one tree.
        completed: a tree that ends before the run does is completed with virtual steps to the next power of two. The
            completed noise enters with the next tree's first step.
    """
    last, gram = _gram(workload)
    all_steps = final = 0.0
    for pair in _pairs(workload.steps, steps_per_tree, completed):
        all_steps += pair.total(gram)
        final += pair.total(lambda first, second: last[first] * last[second])
    return NoiseInWeights(all_steps=float(np.sqrt(all_steps / workload.steps)), final=float(np.sqrt(final)))


def tree_variances(combinations: Array, *, steps_per_tree: int | None = None, completed: bool = False) -> Array:
    """The variances (n,) of linear combinations (n, T) of the noise of the steps, for nodes of standard deviation 1.

    Args:
        combinations: the coefficient of each step's noise; T is the number of steps of the run.
        steps_per_tree, completed: as for `tree_noise`.
    """
    variances = np.zeros(len(combinations))
    padded = np.pad(combinations, ((0, 0), (0, 1)))  # "step" T stands for nodes that stay forever
    for pair in _pairs(combinations.shape[1], steps_per_tree, completed):
        for place, row in enumerate(padded):
            variances[place] += pair.total(lambda first, second, row=row: row[first] * row[second])
    return variances


def tree_covariance(steps: int, *, steps_per_tree: int | None = None, completed: bool = False) -> Array:
    """The covariance over steps, (n, n), of the noise N_t - N_{t-1}, where N_t is the noise of the prefix sum."""
    covariance = np.zeros((steps + 1, steps + 1))
    for pair in _pairs(steps, steps_per_tree, completed):
        for sign, first, second in pair.moves():
            np.add.at(covariance, (first, second), sign * pair.covariance / 2)
            np.add.at(covariance, (second, first), sign * pair.covariance / 2)
    return covariance[:-1, :-1]


def _gram(workload: Workload) -> tuple[Array, Callable[[Steps, Steps], Array]]:
    """The last row of A, and A^T A as a function of two steps; both are 0 at "step" n.

    Up to step s' > s the effect of step s is A[n-1, s] - momentum^(s'-s) A[n-1, s']. From s' on, it moves the weights
    momentum^(s'-s) times as much as step s'.
    """
    n, momentum, rates = workload.steps, workload.momentum, rates_of(workload)
    left = np.arange(n, 0, -1.0)

    def backwards(values: Array, decay: float) -> Array:
        return np.append(with_momentum(values[::-1], decay)[::-1], 0.0)

    last = backwards(rates, momentum)
    sums = backwards(left * rates, momentum)
    squares = backwards(left * rates**2 + 2 * momentum * rates * sums[1:], momentum**2)

    def gram(first: Steps, second: Steps) -> Array:
        earlier, later = np.minimum(first, second), np.maximum(first, second)
        decayed = momentum ** (later - earlier).astype(float)
        return (last[earlier] - decayed * last[later]) * sums[later] + decayed * squares[later]

    return last, gram


@dataclass(frozen=True, kw_only=True)
class _Pair:
    """Nodes of one level and their ancestors at another (or themselves), with the steps when prefix sums hold them.

    Args:
        covariance: that of a node's estimate with its ancestor's, doubled for both orders if the two are different.
        enter, leave: the steps at which the nodes enter the sums and leave them; n for never.
        above_enter, above_leave: the same for the ancestors.
    """

    covariance: float
    enter: Steps
    leave: Steps
    above_enter: Steps
    above_leave: Steps

    def moves(self) -> Iterator[tuple[int, Steps, Steps]]:
        """The terms of the product of (+1 at enter, -1 at leave) with that of the ancestor: sign and both steps."""
        yield 1, self.enter, self.above_enter
        yield 1, self.leave, self.above_leave
        yield -1, self.enter, self.above_leave
        yield -1, self.leave, self.above_enter

    def total(self, form: Callable[[Steps, Steps], Array]) -> float:
        """Their contribution to the expectation of a quadratic form in the noise of the steps."""
        return self.covariance * sum(sign * float(form(first, second).sum()) for sign, first, second in self.moves())


def _pairs(steps: int, steps_per_tree: int | None, completed: bool) -> Iterator[_Pair]:
    """All pairs of nodes whose estimates are correlated.

    Honaker's estimate from below (DP-FTRL, Kairouz et al. 2021, arXiv 2103.00039): the sum of a node is its own noise
    plus half the sum of both children, so its variance at height h is 2 - 2^-h; divided by that, it estimates the noise
    of the node's steps. The prefix sums hold a left node from its own last step until its sibling's, when the two
    merge; a right node only as a part of its parent; the root forever.
    """
    length = steps if steps_per_tree is None else positive_integer(steps_per_tree=steps_per_tree)
    for first in range(0, steps, length):
        end = min(first + length, steps)
        height = (end - first - 1).bit_length()
        leaves = 1 << height
        when = np.arange(first, first + leaves + 1)
        when[end - first :] = end if completed else steps
        when[leaves] = steps
        for upper in range(height + 1):
            for lower in range(upper + 1):
                nodes = np.arange(0, leaves >> lower, 2)
                above = nodes >> (upper - lower)
                nodes, above = nodes[above % 2 == 0], above[above % 2 == 0]
                estimates = 2.0 ** (lower - upper) / (2 - 2.0**-upper)
                yield _Pair(
                    covariance=estimates if lower == upper else 2 * estimates,
                    enter=when[((nodes + 1) << lower) - 1],
                    leave=when[np.minimum(((nodes + 2) << lower) - 1, leaves)],
                    above_enter=when[((above + 1) << upper) - 1],
                    above_leave=when[np.minimum(((above + 2) << upper) - 1, leaves)],
                )
