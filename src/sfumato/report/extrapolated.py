"""The plot of what a budget takes among more users: participants of a round against the number of users."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sfumato.report.drawing import calm, logarithmic, svg
from sfumato.report.style import SERIES, figures


def extrapolated(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line for each budget and accountant ("rdp" dashed). The same rows give the same bytes.

    Args:
        rows: `users`, `epsilon`, `accountant` and `batch_size` (None where nothing meets the budget).

    Returns:
        an SVG file.
    """
    from matplotlib.figure import Figure

    with figures("extrapolated", size=8.5):
        figure = Figure(figsize=(4.6, 3.2), layout="constrained")
        axes = figure.add_subplot()
        colours = dict(zip(dict.fromkeys(row["epsilon"] for row in rows), SERIES * len(rows), strict=False))
        for (epsilon, accountant), colour in {
            (row["epsilon"], row["accountant"]): colours[row["epsilon"]] for row in rows
        }.items():
            known = [
                (row["users"], row["batch_size"])
                for row in rows
                if (row["epsilon"], row["accountant"]) == (epsilon, accountant) and row["batch_size"]
            ]
            if known:
                axes.plot(
                    *zip(*sorted(known), strict=True),
                    marker="o",
                    markersize=4,
                    color=colour,
                    linestyle="-" if accountant == "pld" else "--",
                    label=f"epsilon {epsilon:g}, {accountant}",
                )
        axes.set_xscale("log")
        axes.set_yscale("log")
        for axis in (axes.xaxis, axes.yaxis):
            logarithmic(axis)
        axes.set_xlabel("users")
        axes.set_ylabel("in a step, in expectation")
        if axes.lines:
            axes.legend(frameon=False, fontsize=7)
        calm(axes)
        return svg(figure)
