"""The public grid of noise that holds on real machines, and what rounding a sum to it costs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sfumato._checks import SfumatoError, positive_integer
from sfumato.privacy.clipping import Clipping, Quantile
from sfumato.privacy.mechanism import Gaussian, Mechanism

if TYPE_CHECKING:
    from sfumato.privacy.planning.requested import Optimal


@dataclass(frozen=True, kw_only=True)
class NoiseGrid:
    """The multiples of C 2^exponent, to which a step's sum and its noise are rounded before they are added.

    Args:
        exponent: of the grid's step, in units of the clipping norm C.
        elements: d, how many coordinates a sum has.
        alone: whether each vector of the sum is computed, clipped and rounded by itself, so that the sum is exact; else
            several are added up in floating point first.

    **Guarantee.** Let S be a sum that one unit moves by at most k C, k whole, and not at all where k = 0. Rounded to
    the grid, each coordinate moves by at most half a step g, so the rounded sums S' of neighbours differ by at most
    k C + g sqrt(d) <= k C (1 + `widening`). Noise Z ~ N(0, (sigma C (1 + widening))^2 I) makes S' + Z the Gaussian
    mechanism of noise multiplier sigma, whatever the theorem. S' lies on the grid, so round(S' + Z) = S' + round(Z):
    what is released is post-processing of that mechanism, and no floating-point operation is left in it.

    >>> NoiseGrid(exponent=-30, elements=2**20, alone=True).widening <= 2.0**-19
    True
    """

    exponent: int
    elements: int
    alone: bool

    def __post_init__(self) -> None:
        if isinstance(self.exponent, bool) or not isinstance(self.exponent, int):
            raise SfumatoError(
                f"exponent must be a whole number, got {self.exponent!r}", "give that of the grid's step"
            )
        positive_integer("elements", self.elements, remedy="give the number of trained parameters' elements")
        if not isinstance(self.alone, bool):
            raise SfumatoError(f"alone must be true or false, got {self.alone!r}", "say how the sum is computed")

    @property
    def widening(self) -> float:
        """By how much of C rounding may move the difference that one unit makes: g sqrt(d) / C, rounded up."""
        return math.ldexp(math.nextafter(math.sqrt(self.elements), math.inf), self.exponent)

    @property
    def words(self) -> str:
        """The noise, for a statement."""
        more = 100 * self.widening
        return (
            f"a Gaussian rounded correctly to multiples of 2^{self.exponent} of the clipping norm, drawn exactly from "
            f"the bits of SHAKE-256, and {more:.1e}% stronger than the noise multiplier says, for the rounding of sums"
        )


def refuse_without_grid(mechanism: Mechanism | Optimal, clipping: Clipping | None = None) -> None:
    """Refuse secure noise where what is released would be no post-processing of integers on one grid.

    Args:
        clipping: the plan's; None where it is not known yet.
    """
    if not isinstance(mechanism, Gaussian):
        raise SfumatoError(
            "noise is secure, and the mechanism adds up noise of several steps in floating point",
            "give mechanism gaussian with a participation that draws anew or takes all, or noise standard",
        )
    if isinstance(clipping, Quantile):
        raise SfumatoError(
            "noise is secure, and the clipping norm follows a quantile, so that each step would have another grid",
            "leave quantile out, or give noise standard",
        )
