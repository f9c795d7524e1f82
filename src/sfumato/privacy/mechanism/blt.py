"""Buffered linear Toeplitz noise (BLT): what a step's noise takes back of all earlier steps', by a few buffers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sfumato._checks import SfumatoError
from sfumato.privacy.mechanism.mechanism import Mechanism, numbers

if TYPE_CHECKING:
    from sfumato.privacy.factorisation.weights import NoiseInWeights
    from sfumato.privacy.factorisation.workload import Workload

MOST_BUFFERS = 4


@dataclass(frozen=True, kw_only=True)
class BufferedToeplitz(Mechanism):
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

    def noise_in_weights(self, workload: Workload) -> NoiseInWeights:
        """That of C^-1."""
        from sfumato.privacy import factorisation

        return factorisation.toeplitz_noise(
            workload, factorisation.inverse(self.column(workload.steps), workload.steps)
        )

    def variances(self, combinations: Any) -> Any:
        """Those of the combinations of C^-1 z."""
        from sfumato.privacy import factorisation

        steps = combinations.shape[1]
        return factorisation.toeplitz_variances(combinations, factorisation.inverse(self.column(steps), steps))

    @property
    def words(self) -> str:
        """What a statement says of it."""
        buffers = len(self.decays)
        return f"before it is correlated over all steps by {buffers} buffer{'s' if buffers > 1 else ''}"

    @property
    def remark(self) -> str:
        """The same in plain words."""
        return (
            "Each step takes back some of the noise of all steps before it, so that a sum over many steps "
            "holds less of it than if each step had noise of its own."
        )
