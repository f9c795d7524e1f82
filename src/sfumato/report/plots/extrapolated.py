"""The plot of what a budget takes among more users: participants of a round against the number of users, or epsilon
against the participants of a round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sfumato.report.plots.drawing import calm, logarithmic, svg
from sfumato.report.style import SERIES, figures


def extrapolated(rows: Sequence[Mapping[str, Any]], *, by_size: bool = False) -> str:
    """A line for each budget (by size: for each number of users) and accountant ("rdp" dashed).

    The same rows give the same bytes.

    Args:
        rows: `users`, `epsilon`, `accountant` and `batch_size` (None where nothing meets the budget).
        by_size: draw epsilon over the participants of a round, as figures 2 and 3 of Xu et al. 2022 do.

    Returns:
        an SVG file.
    """
    from matplotlib.figure import Figure

    with figures("extrapolated", size=8.5):
        figure = Figure(figsize=(4.6, 3.2), layout="constrained")
        axes = figure.add_subplot()
        of, across, up = ("users", "batch_size", "epsilon") if by_size else ("epsilon", "users", "batch_size")
        colours = dict(zip(dict.fromkeys(row[of] for row in rows), SERIES * len(rows), strict=False))
        for value, accountant in dict.fromkeys((row[of], row["accountant"]) for row in rows):
            known = [
                (row[across], row[up])
                for row in rows
                if (row[of], row["accountant"]) == (value, accountant) and row[up] is not None
            ]
            if known:
                axes.plot(
                    *zip(*sorted(known), strict=True),
                    marker="o",
                    markersize=4,
                    color=colours[value],
                    linestyle="-" if accountant == "pld" else "--",
                    label=f"{f'{value:,} users' if by_size else f'epsilon {value:g}'}, {accountant}",
                )
        axes.set_xscale("log")
        axes.set_yscale("log")
        for axis in (axes.xaxis, axes.yaxis):
            logarithmic(axis)
        axes.set_xlabel("in a step, in expectation" if by_size else "users")
        axes.set_ylabel("epsilon" if by_size else "in a step, in expectation")
        if axes.lines:
            axes.legend(frameon=False, fontsize=7)
        calm(axes)
        return svg(figure)
