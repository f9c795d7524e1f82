"""The audits of a run: lower bounds of epsilon, compared with the promise, and the observations behind them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from markupsafe import Markup

from sfumato.report.plots.drawing import HEIGHT, annotate, inline, render, style_axes
from sfumato.report.style import MUTED, SERIES

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """Histograms of an audit's observations with and without the canary.

    Attributes:
        name: the name of the plot, unique on a page.
        axis: the observed quantity.
        edges: the edges of the bins, (n + 1,).
        within, without: the counts (n,) with the canary, and without it.
    """

    name: str
    axis: str
    edges: Sequence[float]
    within: Sequence[int]
    without: Sequence[int]

    @property
    def picture(self) -> Markup:
        """Both histograms as step plots on one axis, as an `<svg>` element."""
        sides = (("canary in", self.within, SERIES[1]), ("canary out", self.without, SERIES[0]))

        def draw(figure: Figure) -> None:
            axes = figure.add_axes((0.135, 0.18, 0.83, 0.74))
            for place, (name, counts, colour) in enumerate(sides):
                shares = [count / max(1, sum(counts)) for count in counts]
                axes.stairs(shares, self.edges, color=colour, linewidth=1.8)
                corner = (self.edges[0], max(max(shares), 1e-9))
                annotate(axes, name, corner, (4, -2 - 14 * place), va="top", color=colour, fontsize=10)
            axes.set_xlabel(self.axis, color=MUTED, labelpad=4)
            axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.3g}%")
            style_axes(axes)

        seen = f"{sum(self.within):,} with a canary and {sum(self.without):,} without one"
        words = f"Two histograms of {self.axis}: {seen}."
        return Markup(inline(draw, name=self.name, height=HEIGHT, alternative=words))


@dataclass(frozen=True, kw_only=True)
class Audit:
    """One audit.

    Attributes:
        heading: the audited part of the run.
        words: the method, in sentences.
        rows: for each bound its assumption, the epsilon that it proves, the largest epsilon that it could have proven,
            the largest factor on the noise that it would have noticed (None for none), and its confidence (None for an
            estimate).
        refuted: whether a bound lies above the promise.
        histogram: the observations.
        faults: the faults in the noise of single parameters.
    """

    heading: str
    lines: Sequence[str]
    rows: Sequence[tuple[str, float, float, float | None, float | None]]
    refuted: bool
    histogram: Histogram
    faults: Sequence[str] = ()


def audits(found: Sequence[Audit], promised: str) -> Markup:
    """The section on audits; empty if there are none.

    Args:
        promised: the promised epsilon, rounded.
    """
    if not found:
        return Markup("")
    return Markup(render("audits.html.jinja", audits=found, promised=promised))
