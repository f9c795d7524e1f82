"""Plots of rates: ROC curves of classes, and an embedding's recall against the false accept rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from markupsafe import escape

from sfumato.report.plots.curves import WIDTH, inline
from sfumato.report.plots.drawing import calm, shares, svg
from sfumato.report.sections.numbers import percent
from sfumato.report.style import INK, MUTED, RULE, SERIES, figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure


from typing import TYPE_CHECKING, Any

from sfumato.report.plots.curves import HEIGHT
from sfumato.report.plots.drawing import beside
from sfumato.report.sections.numbers import significant

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Curve = Sequence[tuple[float, float]]
_DASHES: tuple[tuple[float, tuple[float, ...]], ...] = ((0, ()), (0, (5, 2)), (0, (2, 1.5)), (0, (6, 2, 1.5, 2)))


def receiver(curves: Mapping[str, Curve], areas: Mapping[str, float]) -> str:
    """True-positive against false-positive rate of some classes, for the page: the plot of those hardest to tell apart.

    Args:
        curves: (false-positive rate, true-positive rate) at each threshold, rising, by class.
        areas: under each of them. Of two classes, whose curves mirror each other, and of more than four, those of the
            smallest areas are drawn.

    Returns:
        an `<svg>` element, or an empty string without curves.
    """
    drawn = sorted(curves, key=lambda name: areas[name])[: 1 if len(curves) == 2 else len(_DASHES)]
    if not drawn:
        return ""
    named = ", ".join(f"{percent(areas[name])} of {escape(name)}" for name in drawn)
    return inline(
        lambda figure: _draw(figure, {name: curves[name] for name in drawn}, areas),
        name="receiver",
        height=WIDTH,
        alternative=f"Lines: ROC curves, areas {named}.",
    )


def receiver_file(name: str, curve: Curve, area: float, point: tuple[float, float]) -> str:
    """The curve of one class as an SVG file, with the point of the threshold that was chosen marked."""
    from matplotlib.figure import Figure

    with figures("receiver"):
        figure = Figure(figsize=(4.6, 4.6))
        _draw(figure, {name: curve}, {name: area})
        figure.axes[0].plot(*point, "o", color=SERIES[0], markersize=6, clip_on=False)
        return svg(figure, bbox_inches="tight")


def _draw(figure: Figure, curves: Mapping[str, Curve], areas: Mapping[str, float]) -> None:
    axes = figure.add_axes((0.15, 0.15, 0.81, 0.81))
    axes.plot((0, 1), (0, 1), color=RULE, linewidth=1, linestyle=(0, (4, 3)))
    for (name, curve), dashes, colour in zip(curves.items(), _DASHES, SERIES, strict=False):
        # Matplotlib leaves out what begins with an underscore.
        label = f"\u200b{name if len(name) <= 20 else name[:19] + '…'}  {percent(areas[name])}"
        axes.plot(*zip(*curve, strict=True), color=colour, linewidth=1.8, linestyle=dashes, label=label)
    axes.set_xlim(-0.01, 1)
    axes.set_ylim(0, 1.01)
    shares(axes, "others taken for it", "of the class, found")
    legend = axes.legend(loc="lower right", frameon=False, fontsize=10, labelcolor=INK, title="area under the curve")
    legend.get_title().set_color(MUTED)
    calm(axes, "both")


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
