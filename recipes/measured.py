"""What came out of recipes that were run here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The outcome of one recipe.

    Args:
        accuracy: with how it was measured, such as "79.1%, median of five".
        hardware: on what.
        time: of one run.
    """

    accuracy: str
    hardware: str
    time: str


MEASURED: dict[str, Measured] = {}
"""By the recipe's name."""
