"""Toeplitz noise: each step cancels part of the noise of earlier steps, of the last few (banded) or of all (BLT)."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

from sfumato._checks import SfumatoError, number
from sfumato.privacy import factorisation
from sfumato.privacy.mechanism.mechanism import Mechanism

MOST_BUFFERS = 4


@dataclass(frozen=True, kw_only=True)
class Toeplitz(Mechanism):
    """The noise C^-1 z: z is independent, and C is a lower triangular Toeplitz matrix with c_0 = 1."""

    earlier = ""  # in words: the steps whose noise a step partly cancels

    @abstractmethod
    def column(self, steps: int) -> Any:
        """The first column of C for this many steps: an array of shape (steps,)."""

    def noise_in_weights(self, workload: factorisation.Workload) -> factorisation.NoiseInWeights:
        """The noise in the weights for C^-1 z."""
        inverse = factorisation.inverse(self.column(workload.steps), workload.steps)
        return factorisation.toeplitz_noise(workload, inverse)

    def variances(self, combinations: Any) -> Any:
        """The variances of combinations of C^-1 z."""
        steps = combinations.shape[1]
        return factorisation.toeplitz_variances(combinations, factorisation.inverse(self.column(steps), steps))

    @property
    def remark(self) -> str:
        """The same for a reader who has never heard of differential privacy."""
        return (
            f"Each step takes back some of the noise of {self.earlier}. A sum over many steps therefore contains less "
            "noise than if each step had noise of its own."
        )


@dataclass(frozen=True, kw_only=True)
class BandedToeplitz(Toeplitz):
    """The noise C^-1 z with a banded lower triangular Toeplitz matrix C (arXiv 2306.08153, 2405.13763).

    Args:
        noise_multiplier: sigma, the standard deviation over the clipping norm of the independent numbers z.
        coefficients: c_0 = 1, c_1, ..., c_(b-1), the first column of C; b is the number of bands.

    **Guarantee.** Releasing the sums with noise C^-1 z is post-processing of C times the sums with noise z. How far one
    unit moves the latter, in clipping norms, is stated by the theorem.
    """

    name = "banded"
    earlier = "the few steps before it"

    coefficients: tuple[float, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        remedy = "give c_0 = 1, c_1, and so on, one for each band"
        object.__setattr__(self, "coefficients", _numbers("coefficients", self.coefficients, remedy=remedy))
        if self.coefficients[0] != 1:
            raise SfumatoError(f"coefficients must begin with 1, got {self.coefficients[0]!r}", remedy)

    @property
    def bands(self) -> int:
        """b."""
        return len(self.coefficients)

    def column(self, steps: int) -> Any:
        """The first column of C for this many steps: an array of shape (steps,)."""
        import numpy as np

        column = np.zeros(steps)
        column[: self.bands] = self.coefficients[:steps]
        return column

    def buffers(self, steps: int) -> int:
        """One less than the number of bands."""
        return self.bands - 1 if steps else 0

    @property
    def description(self) -> str:
        """Its description in a statement."""
        return f"before it is correlated over {self.bands} step{'s' if self.bands > 1 else ''}"


@dataclass(frozen=True, kw_only=True)
class BufferedToeplitz(Toeplitz):
    """The noise C^-1 z, C lower triangular Toeplitz with c_0 = 1, c_k = sum_j scale_j decay_j^(k-1) (arXiv 2405.13763).

    Args:
        noise_multiplier: sigma, the standard deviation over the clipping norm of the independent numbers z.
        scales: one for each of one to four buffers.
        decays: one for each buffer, strictly between 0 and 1, all different.

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
        remedy = f"give one scale and one decay for each buffer, and one to {MOST_BUFFERS} buffers"
        for name in ("scales", "decays"):
            object.__setattr__(self, name, _numbers(name, getattr(self, name), remedy=remedy))
        if len(self.scales) != len(self.decays) or len(self.decays) > MOST_BUFFERS:
            raise SfumatoError(
                f"scales and decays must have the same length, at most {MOST_BUFFERS}, "
                f"got {len(self.scales)} and {len(self.decays)}",
                remedy,
            )
        if not all(0 < decay < 1 for decay in self.decays) or len(set(self.decays)) < len(self.decays):
            raise SfumatoError(f"decays must lie strictly between 0 and 1 and differ, got {self.decays!r}", remedy)

    def column(self, steps: int) -> Any:
        """The first column of C for this many steps: an array of shape (steps,)."""
        import numpy as np

        column = np.ones(steps)
        powers = np.arange(steps - 1)
        column[1:] = sum(
            scale * np.exp(np.log(decay) * powers) for scale, decay in zip(self.scales, self.decays, strict=True)
        )
        return column

    def buffers(self, steps: int) -> int:
        """The number of decays."""
        return len(self.decays) if steps else 0

    @property
    def description(self) -> str:
        """Its description in a statement."""
        buffers = len(self.decays)
        return f"before it is correlated over all steps by {buffers} buffer{'s' if buffers > 1 else ''}"


def _numbers(name: str, values: object, *, remedy: str) -> tuple[float, ...]:
    """The values as a non-empty tuple of finite floats, or a refusal."""
    if not isinstance(values, (tuple, list)) or not values:
        raise SfumatoError(f"{name} must be a sequence of numbers, got {values!r}", remedy)
    return tuple(number(name, value, remedy=remedy) for value in values)
