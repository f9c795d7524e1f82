"""Figures of a statement, which are never below what they stand for."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Decimal


def rounded_up(value: float, digits: int = 3) -> str:
    """A figure for a sentence: never below the value.

    >>> rounded_up(2.99961), rounded_up(0.90271), rounded_up(float("inf"))
    ('3.000', '0.903', 'inf')
    """
    return f"{ceiling(value, digits):.{digits}f}" if math.isfinite(value) else "inf"


def ceiling(value: float, digits: int) -> float:
    """The value, rounded up to so many decimals."""
    if not math.isfinite(value):
        return value
    scaled = Decimal(value).scaleb(digits).to_integral_value(ROUND_CEILING)
    return float(scaled.scaleb(-digits))
