"""The plot of an embedding: recall against the false accept rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sfumato.report.plots.curves import HEIGHT, inline
from sfumato.report.plots.drawing import beside, calm
from sfumato.report.sections.numbers import percent, significant
from sfumato.report.style import INK, MUTED, RULE, SERIES

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def roc(points: Sequence[Mapping[str, Any]], marked: float | None = None) -> str:
    """Recall against the false accept rate on a logarithmic axis, for the page.

    Args:
        points: `at_far`, above 0, and `recall` of each operating point, by rising rate.
        marked: the rate whose recall is written down; one of the points'.

    Returns:
        an `<svg>` element, or an empty string without points.
    """
    if not points:
        return ""
    rates = [float(point["at_far"]) for point in points]
    recalls = [float(point["recall"]) for point in points]
    place = rates.index(marked) if marked is not None else None

    def draw(figure: Figure) -> None:
        from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator, PercentFormatter

        axes = figure.add_axes((0.135, 0.18, 0.83, 0.76))
        axes.plot(rates, recalls, color=SERIES[0], linewidth=1.8, solid_capstyle="round", solid_joinstyle="round")
        axes.set_xscale("log")
        axes.set_xlim(rates[0] / (1.1 if len(rates) > 1 else 10), max(rates[-1], 10 * rates[0]) * 1.1)
        axes.set_ylim(0, 1.02)
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0,)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda rate, _: significant(rate)))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.set_xlabel("false accept rate", color=MUTED, labelpad=2)
        if place is not None:
            axes.axvline(rates[place], color=RULE, linewidth=0.8)
            axes.plot(rates[place], recalls[place], "o", color=SERIES[0], markersize=5)
            low = recalls[place] < 0.85
            offset, side = ((-6, 6), "right") if low else ((6, -14), "left")
            point = (rates[place], recalls[place])
            beside(axes, percent(recalls[place]), point, offset, ha=side, color=INK, fontweight="bold")
        calm(axes)
        axes.tick_params(axis="x", pad=9)

    places = sorted({0, len(rates) - 1} if place is None else {0, place, len(rates) - 1})
    figures = [f"{percent(recalls[index])} at {significant(rates[index])}" for index in places]
    alternative = f"Line: recall against the false accept rate, {', '.join(figures)}."
    return inline(draw, name="roc", height=HEIGHT, alternative=alternative)
