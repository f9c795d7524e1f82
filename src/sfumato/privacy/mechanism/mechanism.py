"""What every mechanism answers, and the plainest: independent Gaussian noise."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from sfumato._checks import positive
from sfumato.privacy import factorisation
from sfumato.privacy.participation.participation import Participation


@dataclass(frozen=True, kw_only=True)
class Mechanism(ABC):
    """The noise of all steps together: how strong it is, and how that of one step hangs together with another's.

    Args:
        noise_multiplier: sigma, the standard deviation over the clipping norm C of the independent numbers that the
            noise is made of.
    """

    noise_multiplier: float

    name: ClassVar[str]
    """As the command line and recipes spell it."""
    independent: ClassVar[bool] = False
    """Whether each step has noise of its own."""
    words: ClassVar[str] = ""
    """What a statement says of it, after "noise multiplier ..."."""
    remark: ClassVar[str] = ""
    """The same to a reader who has never heard of differential privacy; nothing where steps are independent."""

    def __post_init__(self) -> None:
        remedy = "give the noise's standard deviation over the clipping norm"
        positive("noise_multiplier", self.noise_multiplier, remedy=remedy)

    def adapted(self, participation: Participation, population: int, steps: int) -> Mechanism:
        """The mechanism of a plan with these: itself, unless something of it is to follow from them."""
        return self

    def buffers(self, steps: int) -> int:
        """How many numbers for each coordinate its noise remembers after so many steps, never fewer than before."""
        return 0

    @abstractmethod
    def noise_in_weights(self, workload: factorisation.Workload) -> factorisation.NoiseInWeights:
        """What it leaves in the weights, for independent numbers of standard deviation 1."""

    @abstractmethod
    def variances(self, combinations: Any) -> Any:
        """The variances (n,) of linear combinations of the steps' noise, for independent numbers of deviation 1.

        Args:
            combinations: (n, T), the coefficient of each step's noise; T is the number of steps of the run.
        """


@dataclass(frozen=True, kw_only=True)
class Gaussian(Mechanism):
    """Independent Gaussian noise, fresh in every step and coordinate.

    Args:
        noise_multiplier: sigma, the standard deviation over the clipping norm C.

    **Guarantee.** The noise that is added has standard deviation `noise_multiplier * C` (De 2022, equation 2). By how
    many C one unit can move the sum is the theorem's to say (`Theorem.sensitivity`).
    """

    name = "gaussian"
    independent = True

    def noise_in_weights(self, workload: factorisation.Workload) -> factorisation.NoiseInWeights:
        """That of the steps as they are."""
        return factorisation.toeplitz_noise(workload, factorisation.inverse([1.0], workload.steps))

    def variances(self, combinations: Any) -> Any:
        """The sums of squares, since steps are independent."""
        return (combinations**2).sum(1)
