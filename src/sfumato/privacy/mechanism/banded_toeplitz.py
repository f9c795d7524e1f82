"""Banded Toeplitz noise: what a step's noise takes back of the last few steps'."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sfumato._checks import SfumatoError
from sfumato.privacy.mechanism.mechanism import Toeplitz, numbers


@dataclass(frozen=True, kw_only=True)
class BandedToeplitz(Toeplitz):
    """The noise C^-1 z, C lower triangular, banded and the same along each diagonal (arXiv 2306.08153, 2405.13763).

    Args:
        noise_multiplier: sigma, the standard deviation over the clipping norm of the independent numbers z.
        coefficients: c_0 = 1, c_1, ..., c_(b-1), the first column of C; b is the number of bands.

    **Guarantee.** Releasing the sums with noise C^-1 z is post-processing of C times the sums, with noise z. By how
    many clipping norms one unit moves the latter is the theorem's to say.
    """

    name = "banded"
    earlier = "the steps shortly before it"

    coefficients: tuple[float, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        remedy = "give c_0 = 1, c_1, and so on, one for each band"
        object.__setattr__(self, "coefficients", numbers("coefficients", self.coefficients, remedy=remedy))
        if self.coefficients[0] != 1:
            raise SfumatoError(f"coefficients must begin with 1, got {self.coefficients[0]!r}", remedy)

    @property
    def bands(self) -> int:
        """b."""
        return len(self.coefficients)

    def column(self, steps: int) -> Any:
        """The first column of C for so many steps: an array of shape (steps,)."""
        import numpy as np

        column = np.zeros(steps)
        column[: self.bands] = self.coefficients[:steps]
        return column

    def buffers(self, steps: int) -> int:
        """One less than there are bands."""
        return self.bands - 1 if steps else 0

    @property
    def words(self) -> str:
        """What a statement says of it."""
        return f"before it is correlated over {self.bands} step{'s' if self.bands > 1 else ''}"
