"""The plot of a classifier's ROC curves: of each class against all others."""

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
