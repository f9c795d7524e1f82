"""What runs have used of a budget, one after the other, as a plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from sfumato.report.plots.drawing import beside, calm, plot, svg
from sfumato.report.style import MUTED, SERIES

MOST_NAMED = 24
"""So many runs have their names under their bars."""


def spending(rows: Sequence[Mapping[str, Any]], total: str) -> str:
    """Bars that stand on each other: each run's share of the budget upon that of the runs before it.

    Args:
        rows: `run`, `share` and `used` of each, in their order.
        total: what the whole is, in words.

    Returns:
        an SVG file.
    """
    with plot("spending", max(4.6, 1.6 + 0.3 * len(rows)), 3.2) as figure:
        _fill(figure, rows, total)
        return svg(figure)


def _fill(figure: Figure, rows: Sequence[Mapping[str, Any]], total: str) -> None:
    axes = figure.add_subplot()
    places = range(len(rows))
    shares = [100 * row["share"] for row in rows]
    axes.bar(places, shares, 0.7, bottom=[100 * (row["used"] - row["share"]) for row in rows], color=SERIES[0])
    axes.axhline(100, color=SERIES[1], linewidth=1, linestyle="--")
    beside(axes, total, (-0.5, 100), (0, 3), color=SERIES[1])
    named = len(rows) <= MOST_NAMED
    axes.set_xticks(places if named else [], [row["run"] for row in rows] if named else [], rotation=30, ha="right")
    axes.set_xlabel("runs, in the order in which they were reserved" if rows else "no run yet", color=MUTED)
    axes.set_ylabel("used, %")
    axes.set_xlim(-0.6, max(0.6, len(rows) - 0.4))
    axes.set_ylim(0, 115)
    calm(axes)


def draw(rows: Sequence[Mapping[str, Any]], total: str, path: str) -> None:
    """The same into a file that ends with .svg."""
    Path(path).write_text(spending(rows, total), "utf-8")
