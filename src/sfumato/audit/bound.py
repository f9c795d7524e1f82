"""The result of an audit."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from sfumato._checks import SfumatoError, fraction


@dataclass(frozen=True, kw_only=True)
class Bound:
    """A lower bound on epsilon at delta.

    Args:
        epsilon: the bound; 0 if nothing was shown.
        delta: the delta at which epsilon is bounded.
        confidence: one minus the probability that the bound exceeds the true epsilon.
        method: name of the method.
        assumption: assumption beyond the observations, such as "a Gaussian trade-off curve"; None if there is none.
        at_most: the largest epsilon that this number of observations can show.
        mu: the bound on the Gaussian parameter mu from which epsilon was computed.
        smallest_fault: the largest factor below 1 on the noise that the same number of observations would detect in
            nine of ten repetitions; None if it was not computed or if no factor would be detected.
        observations: the counts behind the bound: {"observed_in": 5000, "observed_out": 5000, "in_below": 90}.
    """

    epsilon: float
    delta: float
    confidence: float
    method: str
    assumption: str | None = None
    at_most: float | None = None
    mu: float | None = None
    smallest_fault: float | None = None
    observations: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.epsilon >= 0:
            raise SfumatoError(f"epsilon must not be negative, got {self.epsilon!r}", "pass 0 if nothing was shown")
        fraction("confidence", self.confidence)

    @property
    def proven(self) -> bool:
        """Whether the bound needs no assumption."""
        return self.assumption is None

    def refutes(self, epsilon: float) -> bool:
        """Whether the bound contradicts a promise of this epsilon at the same delta."""
        return self.epsilon > epsilon

    @property
    def sentence(self) -> str:
        """The result in one sentence.

        >>> Bound(epsilon=2.31, delta=1e-5, confidence=0.95, method="two worlds", at_most=4.91).sentence
        'epsilon is at least 2.31 at delta 1e-05 (two worlds; confidence 95%; at most 4.91 could have been shown)'
        """
        parts = [self.method, f"confidence {_percent(self.confidence)}"]
        if self.assumption:
            parts.append(f"assumes {self.assumption}")
        if self.at_most is not None and math.isfinite(self.at_most):
            parts.append(f"at most {_rounded_down(self.at_most)} could have been shown")
        if self.smallest_fault is not None:
            parts.append(f"noise of {_percent(self.smallest_fault)} of its scale would have been noticed")
        return f"epsilon is at least {_rounded_down(self.epsilon)} at delta {self.delta:g} ({'; '.join(parts)})"

    def to_dict(self) -> dict[str, Any]:
        """The fields and the sentence as plain data."""
        return {**asdict(self), "proven": self.proven, "sentence": self.sentence}


def _rounded_down(value: float) -> str:
    """Two decimals, rounded down, because a lower bound must not be rounded up."""
    return f"{math.floor(value * 100 + 1e-9) / 100:.2f}"


def _percent(value: float) -> str:
    """A percentage that keeps all leading nines, rounded down.

    >>> _percent(0.95), _percent(0.999), _percent(1 - 1e-6)
    ('95%', '99.9%', '99.9999%')
    """
    digits = max(0, math.ceil(-math.log10(1 - value) - 2 - 1e-9)) if 0.9 < value < 1 else 0
    scale = 10**digits
    return f"{math.floor(value * 100 * scale + 1e-6) / scale:.{digits}f}%"
