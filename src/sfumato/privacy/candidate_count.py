"""How many candidates a search draws: a random number, by a law that was fixed beforehand. Frozen data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import Any

from sfumato._checks import SfumatoError, not_negative, number, positive

MOST_ON_AVERAGE = 500
LARGEST_SHAPE = 1000
LONGEST_TAIL = 1e5  # 1 / gamma: about where the law's tail begins to fall fast
NEGLIGIBLE = 2.0**-80
POISSON = "Poisson"


@dataclass(frozen=True, kw_only=True)
class CandidateCount:
    """The law of K, the number of candidates of a search.

    Args:
        mean: E[K], above 1 and at most 500.
        shape: eta of the truncated negative binomial law, above -1 and at most 1000; K is at least 1. At 0 the law is
            logarithmic, at 1 geometric; the smaller eta, the cheaper the search and the more uneven K. `math.inf`
            stands for the Poisson law, where K may be 0: then the search releases nothing.

    **Guarantee.** The law of Papernot and Steinke 2021, definition 1 (truncated negative binomial) or the Poisson law
    of their theorem 6. It is a function of the two numbers here, so K tells nothing about the data. What the best of K
    candidates tells is bounded only as long as K itself stays secret.

    >>> CandidateCount(mean=10).law, CandidateCount(mean=10, shape=1).law, CandidateCount(mean=10, shape=math.inf).law
    ('logarithmic', 'geometric', 'Poisson')
    >>> round(CandidateCount(mean=10).share_within(10), 3), CandidateCount(mean=10).quantile(0.95)
    (0.74, 41)
    """

    mean: float
    shape: float = 0.0

    def __post_init__(self) -> None:
        remedy = "give the number of candidates to expect, such as 10"
        positive("mean", self.mean, remedy=remedy)
        if not 1 < self.mean <= MOST_ON_AVERAGE:
            raise SfumatoError(f"mean must lie above 1 and at most at {MOST_ON_AVERAGE}, got {self.mean!r}", remedy)
        if self.is_poisson:
            return
        remedy = "give a shape such as 0 (logarithmic) or 1 (geometric); infinity stands for Poisson"
        if not -1 < number("shape", self.shape, remedy=remedy) <= LARGEST_SHAPE:
            raise SfumatoError(f"shape must lie above -1 and at most at {LARGEST_SHAPE}, got {self.shape!r}", remedy)
        if _mean(self.shape, math.log(LONGEST_TAIL)) < self.mean:
            raise SfumatoError(
                f"a mean of {self.mean:g} at shape {self.shape:g} comes from a few endless searches among many of one "
                "candidate",
                "give a shape nearer to 0, or a smaller mean",
            )

    @property
    def is_poisson(self) -> bool:
        """Whether K may be 0 and follows the Poisson law."""
        return self.shape == math.inf

    @property
    def law(self) -> str:
        """What the law is called."""
        named = {0.0: "logarithmic", 1.0: "geometric", math.inf: POISSON}
        return named.get(self.shape, f"truncated negative binomial (shape {self.shape:g})")

    @property
    def log_inverse_gamma(self) -> float:
        """log(1 / gamma), where gamma, between 0 and 1, is what definition 1 has in place of the mean.

        By bisection down to neighbouring floats; the mean grows with it.
        """
        if self.is_poisson:
            raise SfumatoError("a Poisson law has no gamma", "ask a law of finite shape")
        low, high = 0.0, math.log(LONGEST_TAIL)
        while low < (middle := (low + high) / 2) < high:
            low, high = (middle, high) if _mean(self.shape, middle) < self.mean else (low, middle)
        return high

    def masses(self) -> Iterator[float]:
        """P(K = 0), P(K = 1), and so on, up to where all the rest together is below 1e-18.

        With l = log(1 / gamma), P(K = k) = (eta / (e^(eta l) - 1)) (1 - gamma)^k Gamma(k + eta) / (Gamma(1 + eta) k!):
        each one follows from the one before.
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

    def share_within(self, most: int) -> float:
        """P(K <= most): the share of searches with at most so many candidates."""
        return min(1.0, math.fsum(islice(self.masses(), most + 1)))

    def quantile(self, share: float) -> int:
        """The least n with P(K <= n) above the share: how many candidates to be prepared for; the law's inverse.

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
        """Plain data that `from_dict` reads back; the Poisson law's shape by its name, since JSON has no infinity."""
        return {"mean": float(self.mean), "shape": POISSON if self.is_poisson else float(self.shape)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> CandidateCount:
        """The law that `to_dict` wrote."""
        if not isinstance(data, Mapping) or set(data) != {"mean", "shape"}:
            raise SfumatoError(
                f"a law of draws must have exactly a mean and a shape, got {data!r}", "give what to_dict writes"
            )
        return cls(mean=data["mean"], shape=math.inf if data["shape"] == POISSON else data["shape"])


def _over_expm1(value: float) -> float:
    """x / (e^x - 1), which is 1 at 0."""
    return value / math.expm1(value) if value else 1.0


def _mean(shape: float, log_inverse: float) -> float:
    """E[K] = eta (1 / gamma - 1) / (1 - gamma^eta), or at eta = 0 its limit (1 / gamma - 1) / log(1 / gamma)."""
    return math.expm1(log_inverse) / log_inverse * _over_expm1(-shape * log_inverse)
