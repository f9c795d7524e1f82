"""The number of candidates of a search: random, with a distribution that is fixed in advance. Frozen data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import Any

from sfumato._checks import SfumatoError, not_negative, number, positive

MOST_ON_AVERAGE = 500
LARGEST_SHAPE = 1000
LONGEST_TAIL = 1e5  # 1 / gamma: roughly where the tail begins to fall fast
NEGLIGIBLE = 2.0**-80
POISSON = "Poisson"


@dataclass(frozen=True, kw_only=True)
class CandidateCount:
    """The distribution of K, the number of candidates of a search.

    Args:
        mean: E[K], above 1 and at most 500.
        shape: eta of the truncated negative binomial distribution, above -1 and at most 1000; K is at least 1. It is
            logarithmic at 0 and geometric at 1. A smaller eta makes the search cheaper and K more uneven. `math.inf`
            means the Poisson distribution, under which K may be 0 and the search then releases nothing.

    **Guarantee.** The distribution of Papernot and Steinke 2021, definition 1 (truncated negative binomial), or the
    Poisson distribution of their theorem 6. It is a function of these two numbers, so K reveals nothing about the data.
    What the best of K candidates reveals is bounded only as long as K itself stays secret.

    >>> CandidateCount(mean=10).law, CandidateCount(mean=10, shape=1).law, CandidateCount(mean=10, shape=math.inf).law
    ('logarithmic', 'geometric', 'Poisson')
    >>> round(CandidateCount(mean=10).cdf(10), 3), CandidateCount(mean=10).quantile(0.95)
    (0.74, 41)
    """

    mean: float
    shape: float = 0.0

    def __post_init__(self) -> None:
        remedy = "give the number of candidates to expect, such as 10"
        positive("mean", self.mean, remedy=remedy)
        if not 1 < self.mean <= MOST_ON_AVERAGE:
            raise SfumatoError(f"mean must be above 1 and at most {MOST_ON_AVERAGE}, got {self.mean!r}", remedy)
        if self.is_poisson:
            return
        remedy = "give a shape such as 0 (logarithmic) or 1 (geometric); infinity means Poisson"
        if not -1 < number("shape", self.shape, remedy=remedy) <= LARGEST_SHAPE:
            raise SfumatoError(f"shape must be above -1 and at most {LARGEST_SHAPE}, got {self.shape!r}", remedy)
        if _mean(self.shape, math.log(LONGEST_TAIL)) < self.mean:
            raise SfumatoError(
                f"a mean of {self.mean:g} at shape {self.shape:g} comes from a few extremely long searches among many "
                "with one candidate",
                "give a shape nearer to 0, or a smaller mean",
            )

    @property
    def is_poisson(self) -> bool:
        """Whether K follows the Poisson distribution and may be 0."""
        return self.shape == math.inf

    @property
    def law(self) -> str:
        """The name of the distribution."""
        named = {0.0: "logarithmic", 1.0: "geometric", math.inf: POISSON}
        return named.get(self.shape, f"truncated negative binomial (shape {self.shape:g})")

    @property
    def log_inverse_gamma(self) -> float:
        """log(1 / gamma). Definition 1 has gamma, between 0 and 1, in place of the mean.

        Found by bisection down to neighbouring floats; the mean grows with it.
        """
        if self.is_poisson:
            raise SfumatoError("a Poisson law has no gamma", "use a finite shape")
        low, high = 0.0, math.log(LONGEST_TAIL)
        while low < (middle := (low + high) / 2) < high:
            low, high = (middle, high) if _mean(self.shape, middle) < self.mean else (low, middle)
        return high

    def masses(self) -> Iterator[float]:
        """P(K = 0), P(K = 1), and so on, until the remaining probability is below 1e-18.

        With l = log(1 / gamma), P(K = k) = (eta / (e^(eta l) - 1)) (1 - gamma)^k Gamma(k + eta) / (Gamma(1 + eta) k!).
        Each one is computed from the one before.
        """
        if self.is_poisson:
            count, mass = 0, math.exp(-self.mean)
        else:
            yield 0.0
            log_inverse = self.log_inverse_gamma
            one_less_gamma = -math.expm1(-log_inverse)
            count, mass = 1, one_less_gamma * _over_expm1(self.shape * log_inverse) / log_inverse
        while True:
            yield mass
            ratio = (self.mean if self.is_poisson else one_less_gamma * (count + self.shape)) / (count + 1)
            if mass < NEGLIGIBLE and ratio < 1:
                return
            count, mass = count + 1, mass * ratio

    def cdf(self, most: int) -> float:
        """P(K <= most): the share of searches with at most this many candidates."""
        return min(1.0, math.fsum(islice(self.masses(), most + 1)))

    def quantile(self, share: float) -> int:
        """The least n with P(K <= n) above the share: the number of candidates to be prepared for.

        `share` is at least 0 and below 1.
        """
        if not_negative("share", share) >= 1:
            raise SfumatoError(f"share must be below 1, got {share!r}", "give a share of all searches, such as 0.95")
        least = -1
        for total in accumulate(self.masses()):
            least += 1
            if total > share:
                break
        return least

    def to_dict(self) -> dict[str, Any]:
        """Plain data that `from_dict` reads back. A Poisson shape is written by name, because JSON has no infinity."""
        return {"mean": float(self.mean), "shape": POISSON if self.is_poisson else float(self.shape)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> CandidateCount:
        """The distribution that `to_dict` wrote."""
        if not isinstance(data, Mapping) or set(data) != {"mean", "shape"}:
            raise SfumatoError(
                f"a candidate count must have exactly a mean and a shape, got {data!r}", "give what to_dict writes"
            )
        return cls(mean=data["mean"], shape=math.inf if data["shape"] == POISSON else data["shape"])


def _over_expm1(value: float) -> float:
    """x / (e^x - 1), which is 1 at 0."""
    return value / math.expm1(value) if value else 1.0


def _mean(shape: float, log_inverse: float) -> float:
    """E[K] = eta (1 / gamma - 1) / (1 - gamma^eta), or at eta = 0 its limit (1 / gamma - 1) / log(1 / gamma)."""
    return math.expm1(log_inverse) / log_inverse * _over_expm1(-shape * log_inverse)
