"""Tree aggregation if each unit takes part at regular intervals: one Gaussian release."""

from __future__ import annotations

import functools
from typing import Any

from sfumato.privacy.mechanism import Tree
from sfumato.privacy.theorems.composed_gaussian import OneGaussianTheorem, gap
from sfumato.privacy.theorems.theorem import Plan


class TreeAggregation(OneGaussianTheorem):
    """The noisy nodes of all trees are one Gaussian release; everything computed from them is post-processing."""

    mechanisms = (Tree,)
    name = "Gaussian mechanism with tree aggregation"
    citation = (
        "Kairouz et al. 2021 (arXiv 2103.00039), appendix D (several participations, restarts); Denisov et al. 2022 "
        "(arXiv 2202.08312), theorem 2.1 (adaptivity); Balle and Wang 2018, theorem 8"
    )

    def squared_sensitivity(self, plan: Plan, steps: int) -> int:
        """For the worst unit, the sum over all nodes of the squared number of the unit's steps below the node."""
        tree = plan.mechanism
        assert isinstance(tree, Tree)
        return squared_sensitivity(steps, gap(plan), tree.steps_per_tree, tree.completed)


@functools.lru_cache(maxsize=64)
def squared_sensitivity(steps: int, gap: int, steps_per_tree: int | None = None, completed: bool = False) -> int:
    """S^2 of trees over `steps` steps, for units that take part in every `gap`-th step, starting anywhere.

    The number of steps determines which trees were completed: all that are followed by another one.

    **Guarantee.** Exact: a node moves by the number of the unit's steps below it if all of the unit's vectors agree.

    >>> squared_sensitivity(8, 8), squared_sensitivity(9, 4), squared_sensitivity(7, 3)
    (4, 11, 9)
    """
    import numpy as np

    length = steps_per_tree or steps
    earlier, last = (steps - 1) // length, (steps - 1) % length + 1
    whole = _squares(length, 1 << (length - 1).bit_length() if completed else length, gap)
    total = np.zeros(gap)  # by unit, indexed by its first step
    for squares, starts in ((whole, np.arange(earlier) * length), (_squares(last, last, gap), [earlier * length])):
        units = np.add.outer(starts, np.arange(len(squares))) % gap
        total += np.bincount(units.reshape(-1), np.tile(squares, len(starts)), gap)
    return int(total.max())


def _squares(steps: int, leaves: int, gap: int) -> Any:
    """The sums over the complete nodes of one tree, shape (min(gap, steps),), by the unit's first step in it."""
    import numpy as np

    first = np.arange(min(gap, steps))[:, None]
    total = np.zeros(len(first), dtype=np.int64)
    width = 1
    while width <= leaves:
        end = leaves // width * width
        # A unit takes part at most once in a node no wider than the gap, so counting the nodes with a participation
        # is enough.
        edges = np.arange(0, end + 1, width) if width > gap else np.array([0, end])
        before = np.maximum(-(-(np.minimum(edges, steps) - first) // gap), 0)
        total += (np.diff(before) ** (2 if width > gap else 1)).sum(axis=1)
        width *= 2
    return total
