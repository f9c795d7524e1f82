"""What one promise covers, and which data sets count as neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Adjacency = Literal["add-or-remove"]
ADJACENCIES = ("add-or-remove",)


@dataclass(frozen=True)
class Example:
    """One record: the promise covers each by itself, whoever it is about."""

    name = "example"


Unit = Example
UNITS = {Example.name: Example()}
