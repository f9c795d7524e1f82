"""Buffered linear Toeplitz noise (BLT): what a step's noise takes back of all earlier steps', by a few buffers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sfumato._checks import SfumatoError
from sfumato.privacy.mechanism.mechanism import Toeplitz, numbers

MOST_BUFFERS = 4


@dataclass(frozen=True, kw_only=True)
class BufferedToeplitz(Toeplitz):
    """The noise C^-1 z, C lower triangular Toeplitz with c_0 = 1, c_k = sum_j scale_j decay_j^(k-1) (arXiv 2405.13763).

    Args:
        noise_multiplier: sigma, the standard deviation over the clipping norm of the independent numbers z.
        scales: one for each buffer, of one to four.
        decays: one for each buffer, strictly between 0 and 1, no two alike.

    **Guarantee.** As for `BandedToeplitz`.

    >>> blt = BufferedToeplitz(noise_multiplier=1.0, scales=(0.2, 0.3), decays=(0.9, 0.5))
    >>> [round(float(value), 4) for value in blt.column(4)]
    [1.0, 0.5, 0.33, 0.237]
    """

    name = "blt"
    earlier = "all steps before it"

    scales: tuple[float, ...]
    decays: tuple[float, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        remedy = f"give one scale and one decay for each buffer, of one to {MOST_BUFFERS}"
        for name in ("scales", "decays"):
            object.__setattr__(self, name, numbers(name, getattr(self, name), remedy=remedy))
        if len(self.scales) != len(self.decays) or len(self.decays) > MOST_BUFFERS:
            raise SfumatoError(
                f"scales and decays must be equally many and at most {MOST_BUFFERS}, "
                f"got {len(self.scales)} and {len(self.decays)}",
                remedy,
            )
        if not all(0 < decay < 1 for decay in self.decays) or len(set(self.decays)) < len(self.decays):
            raise SfumatoError(f"decays must lie strictly between 0 and 1 and differ, got {self.decays!r}", remedy)

    def column(self, steps: int) -> Any:
        """The first column of C for so many steps: an array of shape (steps,)."""
        import numpy as np

        column = np.ones(steps)
        powers = np.arange(steps - 1)
        column[1:] = sum(
            scale * np.exp(np.log(decay) * powers) for scale, decay in zip(self.scales, self.decays, strict=True)
        )
        return column

    def buffers(self, steps: int) -> int:
        """As many as there are decays."""
        return len(self.decays) if steps else 0

    @property
    def words(self) -> str:
        """What a statement says of it."""
        buffers = len(self.decays)
        return f"before it is correlated over all steps by {buffers} buffer{'s' if buffers > 1 else ''}"
