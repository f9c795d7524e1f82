"""Correlated noise over the steps, computed online in a few buffers: tree aggregation, banded Toeplitz matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sfumato.privacy.mechanism import BandedToeplitz, Tree
from sfumato.randomness.noise.blocks import Fresh

AHEAD = 8
"""For how many steps the contribution of earlier steps is computed at once. Checkpoint states depend on it."""
SMALL = 1 << 18
"""A BLAS does up to this many multiplications in the calling thread. The threads here are our own."""


class TreeNoise:
    """The noise of a step is N_t - N_{t-1}, N_t that of the prefix sum (Honaker 2015; Kairouz et al. 2021, section 3):

        node of height h = fresh + (left + right) / 2,     of variance  v_h = 2 - 2^-h
        N_t = sum over the complete subtrees that make up the first t leaves:  node / v_h

    Buffer h holds the last complete node of height h. The step after `position` leaves completes one node. Its height
    is the number of trailing ones of `position` in binary, and the nodes of lower heights become part of it.

    **Guarantee.** The fresh numbers of all nodes that one step completes reach a release only through the highest of
    them, so they are drawn as one Gaussian of the same variance: the joint distribution of all N_t is that of a tree
    with an independent number in each node. Trees after a restart have independent numbers, and so has a completion,
    whose noise enters with the first step of the next tree.
    """

    def __init__(self, mechanism: Tree):
        self._leaves, self._completed = mechanism.steps_per_tree, mechanism.completed

    def noise(self, step: int, fresh: Fresh, buffers: np.ndarray) -> np.ndarray:
        """N_t - N_{t-1}, in standard deviations of a node."""
        position = step % self._leaves if self._leaves else step
        height = (~position & (position + 1)).bit_length() - 1
        node, noise = _merged(range(height), height, fresh("noise"), buffers)
        if self._leaves and self._completed and step and not position:
            noise += self._completion(self._leaves, fresh, buffers)
        buffers[height] = node
        return noise

    def _completion(self, leaves: int, fresh: Fresh, buffers: np.ndarray) -> np.ndarray:
        """The change of the finished tree's noise when virtual leaves fill it up to a power of two."""
        levels = [level for level in range(leaves.bit_length()) if leaves >> level & 1]
        return _merged(levels, (leaves - 1).bit_length(), fresh("completion"), buffers)[1]


def _merged(
    levels: Sequence[int], height: int, fresh: np.ndarray, buffers: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The node of this height that contains the kept nodes of these levels, and the change of the prefix's noise."""
    known_variance = sum(_variance(level) * 4.0 ** (level - height) for level in levels)
    node = fresh
    node *= math.sqrt(_variance(height) - known_variance)
    change = np.zeros_like(node)
    for level in levels:
        node += 2.0 ** (level - height) * buffers[level]
        change -= buffers[level] / _variance(level)
    change += node / _variance(height)
    return node, change


def _variance(height: int) -> float:
    """The variance of a merged node. Its estimate of its leaves' sum, node / variance, has variance 1 / (2 - 2^-h)."""
    return 2 - 2.0**-height


class BandedToeplitzNoise:
    """C^-1 z by forward substitution (Choquette-Choo et al. 2023, arXiv 2306.08153, algorithm 9):

        zhat_t = z_t - sum_{j=1}^{b-1} c_j zhat_{t-j}

    with b - 1 buffers: zhat of step t replaces the oldest one, in buffer t mod (b - 1). Reading all buffers in every
    step would dominate the time. So they are read once for the next `AHEAD` steps: the part of each of these steps' sum
    that is already known is stored in the buffer that the step itself will use.
    """

    def __init__(self, mechanism: BandedToeplitz):
        self._coefficients = np.array(mechanism.coefficients)
        self._count = len(mechanism.coefficients) - 1
        self._ahead = min(AHEAD, self._count)

    def noise(self, step: int, fresh: Fresh, buffers: np.ndarray) -> np.ndarray:
        """zhat of the step."""
        noise = fresh("noise")
        if not self._count:
            return noise
        begun = step - step % self._ahead
        if step == begun:
            self._look_ahead(step, buffers)
        place = step % self._count
        noise -= buffers[place]
        for earlier in range(begun, step):
            noise -= self._coefficients[step - earlier] * buffers[earlier % self._count]
        buffers[place] = noise
        return noise

    def _look_ahead(self, step: int, buffers: np.ndarray) -> None:
        """Store what earlier steps subtract from the noise of the next `AHEAD` steps, in the buffers of these steps."""
        coming = step + np.arange(self._ahead)
        past = step - 1 - np.arange(self._count)
        distance = coming[:, None] - past
        weights = np.zeros((self._ahead, self._count))
        weights[:, past % self._count] = np.where(
            distance <= self._count, self._coefficients[np.minimum(distance, self._count)], 0.0
        )
        width = max(1, SMALL // weights.size)
        for start in range(0, buffers.shape[1], width):
            columns = buffers[:, start : start + width]
            columns[coming % self._count] = weights @ columns
