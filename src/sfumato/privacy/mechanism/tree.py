"""Tree aggregation: the noise of a prefix sum is that of the few nodes of a binary tree that make it up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sfumato._checks import SfumatoError, positive_integer
from sfumato.privacy import factorisation
from sfumato.privacy.mechanism.mechanism import Mechanism


@dataclass(frozen=True, kw_only=True)
class Tree(Mechanism):
    """Gaussian noise on the nodes of binary trees over the steps, with Honaker's estimator of the prefix sums.

    What is released after step t is the prefix sum with noise N_t, so the noise that is added to the sum of step t
    alone is N_t - N_(t-1) (Kairouz et al. 2021, arXiv 2103.00039; Honaker 2015, online estimator).

    Args:
        noise_multiplier: sigma, the standard deviation over the clipping norm C of one node's noise.
        steps_per_tree: after so many steps a tree ends and another begins; None for one tree over all steps.
        completed: a tree that ends before the run's end is completed by virtual steps, of which nothing takes part, to
            the next power of two, and its last prefix sum is estimated from the whole of it. That noise enters with
            the first step of the next tree; the last tree is not completed.

    **Guarantee.** Every release is a function of noisy sums over complete nodes. A node is complete when all its steps
    are taken or, in a completed tree, virtual.
    """

    name = "tree"
    remark = (
        "The noise belongs to the nodes of a binary tree over the steps, so that a sum over many steps holds that "
        "of a few nodes, and less of it than if each step had noise of its own."
    )

    steps_per_tree: int | None = None
    completed: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        remedy = "give the number of steps after which a tree ends, or None for one tree"
        if self.steps_per_tree is not None:
            positive_integer("steps_per_tree", self.steps_per_tree, remedy=remedy)
        if not isinstance(self.completed, bool):
            raise SfumatoError(f"completed must be true or false, got {self.completed!r}", "give one of the two")
        if self.completed and self.steps_per_tree is None:
            raise SfumatoError("completed must be false where there is one tree, which nothing follows", remedy)

    def buffers(self, steps: int) -> int:
        """One for each height that there has been."""
        return min(steps, self.steps_per_tree or steps).bit_length()

    def noise_in_weights(self, workload: factorisation.Workload) -> factorisation.NoiseInWeights:
        """That of the nodes which each step's prefix sum is made of."""
        return factorisation.tree_noise(workload, steps_per_tree=self.steps_per_tree, completed=self.completed)

    def variances(self, combinations: Any) -> Any:
        """Those of the combinations of N_t - N_(t-1)."""
        return factorisation.tree_variances(combinations, steps_per_tree=self.steps_per_tree, completed=self.completed)

    @property
    def words(self) -> str:
        """What a statement says of it."""
        trees = "one tree"
        if self.steps_per_tree is not None:
            trees = f"a tree for every {self.steps_per_tree} steps{', completed' if self.completed else ''}"
        return f"of each node of {trees}"
