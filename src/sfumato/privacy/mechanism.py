"""Noise mechanisms as frozen data."""

from __future__ import annotations

from dataclasses import dataclass

from sfumato._checks import positive


@dataclass(frozen=True, kw_only=True)
class Gaussian:
    """Independent Gaussian noise, fresh in every step and coordinate.

    Args:
        noise_multiplier: sigma, the standard deviation in units of the sum's L2 sensitivity.

    **Guarantee.** Stated for a sum whose L2 norm one unit can move by at most the sensitivity S; the noise that is
    added has standard deviation `noise_multiplier * S` (De 2022, equation 2).
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        positive(
            "noise_multiplier",
            self.noise_multiplier,
            remedy="give the noise's standard deviation over the clipping norm",
        )


Mechanism = Gaussian
