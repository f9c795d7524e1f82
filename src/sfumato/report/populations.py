"""The plot of larger populations: how many users in a round a budget takes at the same noise in their mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sfumato.report.drawing import INK, calm, svg

_COLOURS = ("#3b6ea5", "#94530f", "#4f7a3a", "#6b4f8a", "#b5473c", "#2b5f66")
_LINES = ("-", (0, (4, 2)), (0, (1, 2)))


def curve_of_populations(rows: Sequence[Mapping[str, Any]]) -> str:
    """Epsilon against users in a round, a line for each population and accountant.

    The same rows give the same bytes.

    Args:
        rows: `population`, `accountant`, `users_per_round` (None where no round is large enough; such rows are left
            out) and `epsilon`.

    Returns:
        an SVG file.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    figure = Figure(figsize=(5.4, 3.4), layout="constrained")
    axes = figure.add_subplot()
    populations = sorted({row["population"] for row in rows})
    accountants = list(dict.fromkeys(row["accountant"] for row in rows))
    for population, colour in zip(populations, _COLOURS * len(populations), strict=False):
        for accountant, line in zip(accountants, _LINES * len(accountants), strict=False):
            points = sorted(
                (row["users_per_round"], row["epsilon"])
                for row in rows
                if (row["population"], row["accountant"]) == (population, accountant) and row["users_per_round"]
            )
            if points:
                label = f"{population:,} users" + (f", {accountant.upper()}" if len(accountants) > 1 else "")
                users, epsilons = zip(*points, strict=True)
                axes.plot(users, epsilons, "o", linestyle=line, color=colour, markersize=3.5, label=label)
    plain = FuncFormatter(lambda value, _: f"{value:,.10g}")
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis, limits in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if limits[1] < 200 * limits[0] else (1.0,)))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(plain)
    axes.set_xlabel("users in a round", color=INK)
    axes.set_ylabel("epsilon", color=INK)
    calm(axes)
    if axes.lines:
        axes.legend(frameon=False, fontsize=7.5, labelcolor=INK, handlelength=3)
    return svg(figure, "populations")
