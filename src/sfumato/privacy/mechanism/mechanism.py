"""The interface of all mechanisms, and the simplest one: independent Gaussian noise."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from sfumato._checks import positive
from sfumato.privacy import factorisation
from sfumato.privacy.participation.participation import Participation


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
        positive("noise_multiplier", self.noise_multiplier, remedy=remedy)

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
        """The noise in the weights for independent steps."""
        return factorisation.toeplitz_noise(workload, factorisation.inverse([1.0], workload.steps))

    def variances(self, combinations: Any) -> Any:
        """The sums of squares, because steps are independent."""
        return (combinations**2).sum(1)
