"""What one promise covers, and which data sets count as neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Adjacency = Literal["add-or-remove", "zero-out"]
ADJACENCIES: dict[str, str] = {
    "add-or-remove": "neighbouring data sets are those with and without one record",
    "zero-out": (
        "neighbouring data sets are those in which one record contributes as it is and in which it contributes "
        "nothing, while its place and the number of records stay known"
    ),
}
"""Each adjacency, and what it means in plain words."""


@dataclass(frozen=True)
class Example:
    """One record: the promise covers each by itself, whoever it is about."""

    name = "example"


Unit = Example
UNITS = {Example.name: Example()}
