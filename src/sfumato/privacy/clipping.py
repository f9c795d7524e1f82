"""The norm to which each unit's contribution is clipped, and the grid of secure noise."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from sfumato._checks import SfumatoError, fraction, number, positive, positive_integer, true_or_false, whole_number
from sfumato.privacy.mechanism import Gaussian, Mechanism

if TYPE_CHECKING:
    from sfumato.privacy.planning.by_name import OptimalToeplitz


_NORM = "give the clipping norm, such as 1.0"


@dataclass(frozen=True)
class FixedClipping:
    """One clipping norm for the whole run.

    Args:
        max_norm: C, the L2 norm that no unit's contribution to a step exceeds.
    """

    max_norm: float = 1.0

    def __post_init__(self) -> None:
        positive(max_norm=self.max_norm, remedy=_NORM)

    def joint_noise(self, noise_multiplier: float) -> float:
        """The noise multiplier of a step's whole release: that of the vectors, because nothing else is released."""
        return noise_multiplier

    def adapted(self, expected_batch_size: int) -> Self:
        """Itself: no parameter depends on the batch size."""
        return self

    @property
    def description(self) -> str:
        """Its description in a statement."""
        return f"clipping norm {self.max_norm:g}"


@dataclass(frozen=True, kw_only=True)
class QuantileClipping:
    """A clipping norm that follows a quantile of the vectors' norms from step to step (Andrew et al. 2021).

    Each step counts how many of its vectors have norm at most C, in one more coordinate of the same release:

        sum_i (d_i / C, (z / sigma_b) (1[|d_i| <= C] - 1/2))  +  noise of multiplier z in every coordinate

    The noisy sum of vectors is multiplied by C afterwards. The last coordinate times sigma_b / z is the centred count
    plus noise of standard deviation sigma_b.

    Args:
        max_norm: C of the first step.
        quantile: gamma, the target share of vectors with norm at most C.
        rate: eta, the learning rate of log C.
        count_noise: sigma_b. None means the expected batch size over 20, which a plan's calibration fills in. With
            virtual clients, give their number over 20.

    **Guarantee.** Each vector with its own coordinate has norm at most sqrt(1 + (z / (2 sigma_b))^2), so the release is
    that of vectors of norm 1 with noise multiplier `joint_noise(z)` = (z^-2 + (2 sigma_b)^-2)^(-1/2), and the theorem
    of every mechanism covers it. One user of a virtual client changes an indicator by up to 1 and the vector by up to
    2 C: both parts double. C of a later step is a function of earlier releases. Andrew et al. (arXiv 1905.03871),
    theorem 1, starts from the joint noise multiplier and splits it: `vector_noise`.

    >>> clipping = QuantileClipping(max_norm=1.0, count_noise=1.6)
    >>> round(clipping.vector_noise(0.62), 3), round(clipping.joint_noise(clipping.vector_noise(0.62)), 9)
    (0.632, 0.62)
    """

    max_norm: float = 1.0
    quantile: float = 0.5
    rate: float = 0.2
    count_noise: float | None = None

    def __post_init__(self) -> None:
        positive(max_norm=self.max_norm, remedy=_NORM)
        fraction(quantile=self.quantile, remedy="give the target share of vectors with norm at most C, such as 0.5")
        positive(rate=self.rate, remedy="give the learning rate of log C, such as 0.2")
        positive(optional=True, count_noise=self.count_noise, remedy="give the standard deviation of the count's noise")

    @property
    def noise_of_count(self) -> float:
        """sigma_b. Refuses if it has not been decided."""
        if self.count_noise is None:
            raise SfumatoError(
                "count_noise must be given, got None",
                "give the number of vectors in a step over 20, as PrivacyPlan.calibrate does",
            )
        return self.count_noise

    def joint_noise(self, noise_multiplier: float) -> float:
        """The noise multiplier of vectors and count together, if the vectors have this one."""
        return 1 / math.hypot(1 / noise_multiplier, 1 / (2 * self.noise_of_count))

    def vector_noise(self, joint: float) -> float:
        """z_delta = (z^-2 - (2 sigma_b)^-2)^(-1/2): the vectors' noise multiplier for the joint noise multiplier z."""
        if positive(noise_multiplier=joint) >= 2 * self.noise_of_count:
            raise SfumatoError(
                f"noise_multiplier must be below {2 * self.noise_of_count:g}, twice the count_noise, got {joint:g}: "
                "the count alone would cost more",
                f"give a count_noise above {joint / 2:g}",
            )
        return 1 / math.sqrt(1 / joint**2 - 1 / (2 * self.noise_of_count) ** 2)

    def noisy_fraction(self, noisy_count: float, expected: float) -> float:
        """b: the share of vectors of norm at most C, from the noisy sum of 1[|d| <= C] - 1/2 and the expected batch."""
        return min(max(number(noisy_count=noisy_count) / positive(expected=expected) + 0.5, 0.0), 1.0)

    def next_norm(self, max_norm: float, noisy_fraction: float) -> float:
        """C of the next step: C exp(-eta (b - gamma)).

        >>> round(QuantileClipping().next_norm(1.0, 1.0), 4), round(QuantileClipping().next_norm(1.0, 0.0), 4)
        (0.9048, 1.1052)
        """
        return max_norm * math.exp(-self.rate * (noisy_fraction - self.quantile))

    def adapted(self, expected_batch_size: int) -> Self:
        """With a count noise of the expected batch size over 20, if none was given."""
        return self if self.count_noise is not None else replace(self, count_noise=expected_batch_size / 20)

    @property
    def description(self) -> str:
        """Its description in a statement."""
        return (
            f"clipping norm {self.max_norm:g} at first and then following the {self.quantile:g} quantile of the norms, "
            f"by counts with noise of standard deviation {self.noise_of_count:g} that are part of the same release"
        )


Clipping = FixedClipping | QuantileClipping


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
        whole_number(least=None, exponent=self.exponent, remedy="give the exponent of the grid spacing")
        positive_integer(elements=self.elements, remedy="give the number of elements of the trained parameters")
        true_or_false(alone=self.alone)

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
    why = None
    if not isinstance(mechanism, Gaussian):
        why = "the mechanism adds up noise of several steps in floating point", "give mechanism gaussian"
    elif isinstance(clipping, QuantileClipping):
        why = "the clipping norm follows a quantile, so each step would have a different grid", "leave quantile out"
    if why is not None:
        raise SfumatoError(f"noise is secure, but {why[0]}", f"{why[1]}, or give noise standard")
