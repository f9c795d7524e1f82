"""Independent Gaussian noise."""

from __future__ import annotations

from dataclasses import dataclass

from sfumato.privacy.mechanism.mechanism import Mechanism


@dataclass(frozen=True, kw_only=True)
class Gaussian(Mechanism):
    """Independent Gaussian noise, fresh in every step and coordinate.

    Args:
        noise_multiplier: sigma, the standard deviation over the clipping norm C.

    **Guarantee.** The noise that is added has standard deviation `noise_multiplier * C` (De 2022, equation 2). By how
    many C one unit can move the sum is the theorem's to say (`Theorem.sensitivity`).
    """

    @property
    def words(self) -> str:
        """What a statement says of it: nothing more."""
        return ""
