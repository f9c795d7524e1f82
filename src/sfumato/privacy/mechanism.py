"""The mechanisms: how the noise is correlated across steps. Frozen data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from sfumato._checks import SfumatoError, number, positive, positive_integer, shortened, true_or_false
from sfumato.privacy import factorisation
from sfumato.privacy.participation.rules import Participation


@dataclass(frozen=True, kw_only=True)
class Mechanism(ABC):
    """The noise of all steps: its strength, and its correlation across steps.

    Args:
        noise_multiplier: sigma. The noise is made of independent numbers whose standard deviation is sigma times the
            clipping norm C.
    """

    noise_multiplier: float

    name: ClassVar[str]
    """The name on the command line and in recipes."""
    independent: ClassVar[bool] = False
    """Whether the noise of different steps is independent."""
    description: ClassVar[str] = ""
    """Its description in a statement, after "noise multiplier ..."."""
    remark: ClassVar[str] = ""
    """The same for a reader who has never heard of differential privacy; empty if the steps are independent."""

    def __post_init__(self) -> None:
        remedy = "give the noise's standard deviation over the clipping norm"
        positive(noise_multiplier=self.noise_multiplier, remedy=remedy)

    def adapted(self, participation: Participation, population: int, steps: int) -> Mechanism:
        """This mechanism with the parameters that follow from a plan's participation and steps; by default itself."""
        return self

    def buffers(self, steps: int) -> int:
        """The number of values per coordinate that its noise keeps after this many steps. Never decreases."""
        return 0

    @abstractmethod
    def noise_in_weights(self, workload: factorisation.Workload) -> factorisation.NoiseInWeights:
        """The noise in the weights, for independent numbers of standard deviation 1."""

    @abstractmethod
    def variances(self, combinations: Any) -> Any:
        """The variances (n,) of linear combinations of the steps' noise, for numbers of standard deviation 1.

        Args:
            combinations: (n, T), the coefficient of each step's noise; T is the number of steps of the run.
        """


@dataclass(frozen=True, kw_only=True)
class Gaussian(Mechanism):
    """Independent Gaussian noise, fresh in every step and coordinate.

    Args:
        noise_multiplier: sigma, the standard deviation over the clipping norm C.

    **Guarantee.** The added noise has standard deviation `noise_multiplier * C` (De 2022, equation 2). How far one unit
    can move the sum, in units of C, is stated by the theorem (`Theorem.sensitivity`).
    """

    name = "gaussian"
    independent = True

    def noise_in_weights(self, workload: factorisation.Workload) -> factorisation.NoiseInWeights:
        return factorisation.toeplitz_noise(workload, factorisation.inverse([1.0], workload.steps))

    def variances(self, combinations: Any) -> Any:
        """The sums of squares, because steps are independent."""
        return (combinations**2).sum(1)


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
        positive_integer(optional=True, steps_per_tree=self.steps_per_tree, remedy=remedy)
        true_or_false(completed=self.completed)
        if self.completed and self.steps_per_tree is None:
            raise SfumatoError("completed must be false if there is only one tree, because no other follows it", remedy)

    def buffers(self, steps: int) -> int:
        """One for each height that the tree has reached."""
        return min(steps, self.steps_per_tree or steps).bit_length()

    def noise_in_weights(self, workload: factorisation.Workload) -> factorisation.NoiseInWeights:
        return factorisation.tree_noise(workload, steps_per_tree=self.steps_per_tree, completed=self.completed)

    def variances(self, combinations: Any) -> Any:
        return factorisation.tree_variances(combinations, steps_per_tree=self.steps_per_tree, completed=self.completed)

    @property
    def description(self) -> str:
        """Its description in a statement."""
        trees = "one tree"
        if self.steps_per_tree is not None:
            trees = f"a tree for every {self.steps_per_tree} steps{', completed' if self.completed else ''}"
        return f"of each node of {trees}"


@dataclass(frozen=True, kw_only=True)
class BandedToeplitz(Mechanism):
    """The noise C^-1 z with a banded lower triangular Toeplitz matrix C (arXiv 2306.08153, 2405.13763).

    Args:
        noise_multiplier: sigma, the standard deviation over the clipping norm of the independent numbers z.
        coefficients: c_0 = 1, c_1, ..., c_(b-1), the first column of C; b is the number of bands.

    **Guarantee.** Releasing the sums with noise C^-1 z is post-processing of C times the sums with noise z. How far one
    unit moves the latter, in clipping norms, is stated by the theorem.
    """

    name = "banded"
    remark = (
        "Each step takes back some of the noise of the few steps before it. A sum over many steps therefore contains "
        "less noise than if each step had noise of its own."
    )

    coefficients: tuple[float, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        remedy = "give c_0 = 1, c_1, and so on, one for each band"
        given = self.coefficients if isinstance(self.coefficients, (tuple, list)) else ()
        values = tuple(number(coefficients=value, remedy=remedy) for value in given)
        if values[:1] != (1,):
            raise SfumatoError(f"coefficients must begin with 1, got {shortened(repr(self.coefficients))}", remedy)
        object.__setattr__(self, "coefficients", values)

    @property
    def bands(self) -> int:
        """b."""
        return len(self.coefficients)

    def column(self, steps: int) -> Any:
        """The first column of C for this many steps: an array of shape (steps,)."""
        import numpy as np

        column = np.zeros(steps)
        column[: self.bands] = self.coefficients[:steps]
        return column

    def noise_in_weights(self, workload: factorisation.Workload) -> factorisation.NoiseInWeights:
        inverse = factorisation.inverse(self.column(workload.steps), workload.steps)
        return factorisation.toeplitz_noise(workload, inverse)

    def variances(self, combinations: Any) -> Any:
        steps = combinations.shape[1]
        return factorisation.toeplitz_variances(combinations, factorisation.inverse(self.column(steps), steps))

    def buffers(self, steps: int) -> int:
        return self.bands - 1 if steps else 0

    @property
    def description(self) -> str:
        """Its description in a statement."""
        return f"before it is correlated over {self.bands} step{'s' if self.bands > 1 else ''}"


MECHANISMS: dict[str, type[Mechanism]] = {each.__name__: each for each in (Gaussian, Tree, BandedToeplitz)}
