"""What one promise covers, and which data sets count as neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Adjacency = Literal["add-or-remove", "zero-out"]


@dataclass(frozen=True, kw_only=True)
class Neighbours:
    """What an adjacency means, in plain words.

    Args:
        without: what the other one of two neighbouring data sets has in place of an example: "as if it had ...".
        difference: what it is that makes the difference between the two.
        remark: what else a reader must know of it.
    """

    without: str
    difference: str
    remark: str = ""


ADJACENCIES: dict[str, Neighbours] = {
    "add-or-remove": Neighbours(without="never been used", difference="one example's presence"),
    "zero-out": Neighbours(
        without="contributed nothing",
        difference="what one example contributes",
        remark=(
            "This is zero-out adjacency: of two neighbouring data sets one example contributes nothing in one, and "
            "contributes as it is in the other, while its place and the number of examples stay known. Under "
            "add-or-remove adjacency it may be missing altogether: figures of the one are no figures of the other."
        ),
    ),
}


@dataclass(frozen=True)
class Example:
    """One record: the promise covers each by itself, whoever it is about."""

    name = "example"


Unit = Example
UNITS = {Example.name: Example()}
