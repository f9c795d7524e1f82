"""What every mechanism answers. Its own class adds its fields, frozen, and checks them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Self

from sfumato._checks import SfumatoError, number, positive

if TYPE_CHECKING:
    from sfumato.privacy.factorisation.weights import NoiseInWeights
    from sfumato.privacy.factorisation.workload import Workload
    from sfumato.privacy.participation.participation import Participation


@dataclass(frozen=True, kw_only=True)
class Mechanism(ABC):
    """The noise of all steps together: how strong it is, and how that of one step hangs together with another's.

    Args:
        noise_multiplier: sigma, the standard deviation over the clipping norm C of the independent numbers that the
            noise is made of.
    """

    noise_multiplier: float

    name = ""  # as the command line and recipes spell it

    def __post_init__(self) -> None:
        positive(
            "noise_multiplier",
            self.noise_multiplier,
            remedy="give the noise's standard deviation over the clipping norm",
        )

    @property
    @abstractmethod
    def words(self) -> str:
        """What a statement says of it, after "noise multiplier ..."."""

    @property
    def remark(self) -> str:
        """The same to a reader who has never heard of differential privacy; nothing where steps are independent."""
        return ""

    @property
    def independent(self) -> bool:
        """Whether each step has noise of its own."""
        return False

    def adapted(self, participation: Participation, population: int, steps: int) -> Mechanism:
        """The mechanism of a plan with these: itself, unless something of it is to follow from them."""
        return self

    def buffers(self, steps: int) -> int:
        """How many numbers for each coordinate its noise remembers after so many steps, never fewer than before."""
        return 0

    @abstractmethod
    def noise_in_weights(self, workload: Workload) -> NoiseInWeights:
        """What it leaves in the weights, for independent numbers of standard deviation 1."""

    @abstractmethod
    def variances(self, combinations: Any) -> Any:
        """The variances (n,) of linear combinations of the steps' noise, for independent numbers of deviation 1.

        Args:
            combinations: (n, T), the coefficient of each step's noise; T is the number of steps of the run.
        """

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The mechanism of a plan as `PrivacyPlan.to_dict` writes it."""
        return cls(**{field.name: data[field.name] for field in fields(cls)})


@dataclass(frozen=True, kw_only=True)
class Toeplitz(Mechanism):
    """The noise C^-1 z, z independent and C lower triangular, the same along each diagonal, with c_0 = 1."""

    earlier = ""  # which steps' noise a step takes back some of, in words

    @abstractmethod
    def column(self, steps: int) -> Any:
        """The first column of C for so many steps: an array of shape (steps,)."""

    def noise_in_weights(self, workload: Workload) -> NoiseInWeights:
        """That of C^-1."""
        from sfumato.privacy import factorisation

        inverse = factorisation.inverse(self.column(workload.steps), workload.steps)
        return factorisation.toeplitz_noise(workload, inverse)

    def variances(self, combinations: Any) -> Any:
        """Those of the combinations of C^-1 z."""
        from sfumato.privacy import factorisation

        steps = combinations.shape[1]
        return factorisation.toeplitz_variances(combinations, factorisation.inverse(self.column(steps), steps))

    @property
    def remark(self) -> str:
        """The same in plain words."""
        return (
            f"Each step takes back some of the noise of {self.earlier}, so that a sum over many steps "
            "holds less of it than if each step had noise of its own."
        )


def numbers(name: str, values: object, *, remedy: str) -> tuple[float, ...]:
    """The values as a tuple of at least one finite float, or a refusal."""
    if not isinstance(values, (tuple, list)) or not values:
        raise SfumatoError(f"{name} must be a sequence of numbers, got {values!r}", remedy)
    return tuple(number(name, value, remedy=remedy) for value in values)
