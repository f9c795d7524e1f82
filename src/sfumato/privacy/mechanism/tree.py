"""Tree aggregation: the noise of a prefix sum is that of the few binary-tree nodes that make it up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sfumato._checks import SfumatoError, positive_integer
from sfumato.privacy import factorisation
from sfumato.privacy.mechanism.mechanism import Mechanism


@dataclass(frozen=True, kw_only=True)
class Tree(Mechanism):
    """Gaussian noise on the nodes of binary trees over the steps, with Honaker's estimator of the prefix sums.

    After step t the prefix sum is released with noise N_t, so the noise added to the sum of step t alone is
    N_t - N_(t-1) (Kairouz et al. 2021, arXiv 2103.00039; Honaker 2015, online estimator).

    Args:
        noise_multiplier: sigma, the standard deviation of one node's noise over the clipping norm C.
        steps_per_tree: the number of steps after which a tree ends and the next one begins; None for one tree over all
            steps.
        completed: complete each tree that ends before the run does: virtual steps without participants fill it up to
            the next power of two, and its last prefix sum is estimated from the whole tree. This noise enters with the
            first step of the next tree. The last tree is not completed.

    **Guarantee.** Every release is a function of noisy sums over complete nodes. A node is complete when all its steps
    have been taken or, in a completed tree, are virtual.
    """

    name = "tree"
    remark = (
        "The noise belongs to the nodes of a binary tree over the steps. A sum over many steps therefore contains the "
        "noise of only a few nodes, and less than if each step had noise of its own."
    )

    steps_per_tree: int | None = None
    completed: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        remedy = "give the number of steps after which a tree ends, or None for one tree"
        if self.steps_per_tree is not None:
            positive_integer("steps_per_tree", self.steps_per_tree, remedy=remedy)
        if not isinstance(self.completed, bool):
            raise SfumatoError(f"completed must be true or false, got {self.completed!r}", "give True or False")
        if self.completed and self.steps_per_tree is None:
            raise SfumatoError("completed must be false if there is only one tree, because no other follows it", remedy)

    def buffers(self, steps: int) -> int:
        """One for each height that the tree has reached."""
        return min(steps, self.steps_per_tree or steps).bit_length()

    def noise_in_weights(self, workload: factorisation.Workload) -> factorisation.NoiseInWeights:
        """The noise in the weights of the nodes that make up each step's prefix sum."""
        return factorisation.tree_noise(workload, steps_per_tree=self.steps_per_tree, completed=self.completed)

    def variances(self, combinations: Any) -> Any:
        """The variances of combinations of N_t - N_(t-1)."""
        return factorisation.tree_variances(combinations, steps_per_tree=self.steps_per_tree, completed=self.completed)

    @property
    def description(self) -> str:
        """Its description in a statement."""
        trees = "one tree"
        if self.steps_per_tree is not None:
            trees = f"a tree for every {self.steps_per_tree} steps{', completed' if self.completed else ''}"
        return f"of each node of {trees}"
