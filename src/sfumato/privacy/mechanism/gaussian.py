"""Independent Gaussian noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sfumato.privacy.mechanism.mechanism import Mechanism

if TYPE_CHECKING:
    from sfumato.privacy.factorisation.weights import NoiseInWeights
    from sfumato.privacy.factorisation.workload import Workload


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

    def noise_in_weights(self, workload: Workload) -> NoiseInWeights:
        """That of the steps as they are."""
        from sfumato.privacy import factorisation

        return factorisation.toeplitz_noise(workload, factorisation.inverse([1.0], workload.steps))

    def variances(self, combinations: Any) -> Any:
        """The sums of squares, since steps are independent."""
        return (combinations**2).sum(1)
