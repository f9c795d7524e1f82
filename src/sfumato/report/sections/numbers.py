"""Numbers as text: with few digits, and epsilon never rounded down."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Integral, Real

from sfumato.privacy.statements.display import rounded_up

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def significant(value: float, digits: int = 3) -> str:
    """The number with this many significant digits, in scientific notation if it is very small or very large.

    >>> significant(0.23456), significant(1e-5), significant(2.5e-5), significant(60000.0)
    ('0.235', '10⁻⁵', '2.5 × 10⁻⁵', '60,000')
    """
    if math.isnan(value):
        return "not a number"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1e9:
        decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
        text = f"{value:,.{decimals}f}"
        return (text.rstrip("0").rstrip(".") if "." in text else text).replace("-", "−")
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    mantissa = mantissa.rstrip("0").rstrip(".").replace("-", "−")
    power = "10" + str(int(exponent)).translate(_SUPERSCRIPTS)
    return power if mantissa == "1" else f"{mantissa} × {power}"


def percent(share: float) -> str:
    """A share as a percentage with one decimal. 100% and 0% appear only if they are exact.

    >>> percent(0.9472), percent(1.0), percent(0.9999), percent(0.0001)
    ('94.7%', '100%', '99.9%', '0.1%')
    """
    if share in (0, 1):
        return f"{share:.0%}"
    return f"{min(99.9, max(0.1, 100 * share)):.1f}%"


def estimate(found: Sequence[float | None] | None) -> str:
    """A share with its interval, or "unknown".

    >>> estimate((0.9712, 0.962, 0.981)), estimate(None)
    ('97.1% (96.2% to 98.1%)', 'unknown')
    """
    value, low, high = found or (None, None, None)
    if value is None or low is None or high is None:
        return "unknown"
    return f"{percent(value)} ({percent(low)} to {percent(high)})"


def cell(name: str, value: object) -> str:
    """A value as text for a table of facts. Epsilon is rounded up.

    >>> cell("examples", 60000), cell("epsilon", 2.9971), cell("resumed", False), cell("seed", None)
    ('60,000', '2.998', 'no', 'none')
    """
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Integral):
        return f"{int(value):,}"
    if isinstance(value, Real):
        return rounded_up(float(value)) if "epsilon" in name.lower() else significant(float(value), 5)
    if isinstance(value, Mapping):
        return "; ".join(f"{key}: {cell(str(key), item)}" for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(cell(name, item) for item in value)
    return str(value)
