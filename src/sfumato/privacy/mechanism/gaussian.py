"""Independent Gaussian noise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sfumato._checks import positive


@dataclass(frozen=True, kw_only=True)
class Gaussian:
    """Independent Gaussian noise, fresh in every step and coordinate.

    Args:
        noise_multiplier: sigma, the standard deviation over the clipping norm C.

    **Guarantee.** The noise that is added has standard deviation `noise_multiplier * C` (De 2022, equation 2). By how
    many C one unit can move the sum is the theorem's to say (`Theorem.sensitivity`).
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        positive(
            "noise_multiplier",
            self.noise_multiplier,
            remedy="give the noise's standard deviation over the clipping norm",
        )

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Gaussian:
        """The mechanism of a plan as `PrivacyPlan.to_dict` writes it."""
        return cls(noise_multiplier=data["noise_multiplier"])
