"""The public grid of secure noise, whose guarantee holds on real computers, and the cost of rounding a sum to it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sfumato._checks import SfumatoError, positive_integer
from sfumato.privacy.clipping import Clipping, QuantileClipping
from sfumato.privacy.mechanism import Gaussian, Mechanism

if TYPE_CHECKING:
    from sfumato.privacy.planning.by_name import OptimalToeplitz


@dataclass(frozen=True, kw_only=True)
class NoiseGrid:
    """The multiples of C 2^exponent. A step's sum and its noise are rounded to them before they are added.

    Args:
        exponent: the grid spacing is 2^exponent, in units of the clipping norm C.
        elements: d, the number of coordinates of a sum.
        alone: whether each vector of the sum is computed, clipped and rounded by itself, so that the sum is exact.
            Otherwise several vectors are first added in floating point.

    **Guarantee.** Let S be a sum that one unit moves by at most k C, with k whole, and not at all if k = 0. Rounding to
    the grid moves each coordinate by at most half the spacing g, so the rounded sums S' of neighbours differ by at most
    k C + g sqrt(d) <= k C (1 + `widening`). Noise Z ~ N(0, (sigma C (1 + widening))^2 I) makes S' + Z the Gaussian
    mechanism of noise multiplier sigma, whatever the theorem. S' lies on the grid, so round(S' + Z) = S' + round(Z):
    the release is post-processing of that mechanism, without any floating-point operation.

    >>> NoiseGrid(exponent=-30, elements=2**20, alone=True).widening <= 2.0**-19
    True
    """

    exponent: int
    elements: int
    alone: bool

    def __post_init__(self) -> None:
        if isinstance(self.exponent, bool) or not isinstance(self.exponent, int):
            raise SfumatoError(
                f"exponent must be a whole number, got {self.exponent!r}", "give the exponent of the grid spacing"
            )
        positive_integer("elements", self.elements, remedy="give the number of elements of the trained parameters")
        if not isinstance(self.alone, bool):
            raise SfumatoError(f"alone must be true or false, got {self.alone!r}", "give True or False")

    @property
    def widening(self) -> float:
        """The most that rounding adds to how far one unit moves a sum, in units of C: g sqrt(d) / C, rounded up."""
        return math.ldexp(math.nextafter(math.sqrt(self.elements), math.inf), self.exponent)

    @property
    def description(self) -> str:
        """The noise, in the words of a statement."""
        more = 100 * self.widening
        return (
            f"a Gaussian rounded correctly to multiples of 2^{self.exponent} of the clipping norm, drawn exactly from "
            f"the bits of SHAKE-256, and {more:.1e}% stronger than the noise multiplier says, to cover rounding of sums"
        )


def refuse_without_grid(mechanism: Mechanism | OptimalToeplitz, clipping: Clipping | None = None) -> None:
    """Refuse secure noise if the release would not be post-processing of integers on one grid.

    Args:
        clipping: the plan's clipping; None if it is not known yet.
    """
    if not isinstance(mechanism, Gaussian):
        raise SfumatoError(
            "noise is secure, but the mechanism adds up noise of several steps in floating point",
            "give mechanism gaussian, with Poisson or full-batch participation, or noise standard",
        )
    if isinstance(clipping, QuantileClipping):
        raise SfumatoError(
            "noise is secure, but the clipping norm follows a quantile, so each step would have a different grid",
            "leave quantile out, or give noise standard",
        )
