"""How a statement is shown: figures rounded up, and a card in a notebook."""

from __future__ import annotations

import math
from abc import abstractmethod
from decimal import ROUND_CEILING, Decimal
from typing import Any

from sfumato._cards import card


def rounded_up(value: float, digits: int = 3) -> str:
    """A figure for a sentence, never below the value.

    >>> rounded_up(2.99961), rounded_up(0.90271), rounded_up(float("inf"))
    ('3.000', '0.903', 'inf')
    """
    return f"{ceiling(value, digits):.{digits}f}" if math.isfinite(value) else "inf"


def ceiling(value: float, digits: int) -> float:
    """The value, rounded up to this many decimals. A value that has no more of them stays as it is.

    >>> ceiling(0.05401, 4), ceiling(0.0541, 4)
    (0.0541, 0.0541)
    """
    if not math.isfinite(value):
        return value
    scaled = Decimal(repr(float(value))).scaleb(digits).to_integral_value(ROUND_CEILING)
    return float(scaled.scaleb(-digits))


def percent_up(share: float) -> str:
    """A share as a percentage with two decimals, never below the share.

    >>> percent_up(0.05401), percent_up(0.0541), percent_up(1.0)
    ('5.41%', '5.41%', '100.00%')
    """
    return f"{ceiling(share, 4):.2%}"


class StatementBase:
    """The interface of all statements."""

    @property
    @abstractmethod
    def sentence(self) -> str:
        """The guarantee, or that there is none."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """The statement as JSON-ready data."""

    def _repr_html_(self) -> str:
        data = self.to_dict()
        epsilon = data["epsilon"]
        figures = [("epsilon", "none")]
        if epsilon is not None:
            figures = [("epsilon", rounded_up(epsilon)), ("delta", repr(data["delta"]))]
        lines = (f"Not covered ({len(data['not_covered'])})", data["not_covered"])
        return card("Statement", figures, data["sentence"], more=lines)
