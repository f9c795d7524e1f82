"""The audit of a run: lower bounds of epsilon, compared with the promise, and the observations behind them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from markupsafe import Markup

from sfumato.report.plots.drawing import HEIGHT, annotate, inline, render, style_axes
from sfumato.report.style import MUTED, SERIES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

AXIS = "observation in the canary's direction, over the noise"


@dataclass(frozen=True, kw_only=True)
class Audit:
    """The audit of a run's step.

    Attributes:
        lines: the method, in sentences.
        rows: for each bound its assumption, the epsilon that it proves, the largest epsilon that it could have proven,
            the largest factor on the noise that it would have noticed (None for none), and its confidence.
        refuted: whether a bound lies above the promise.
        faults: the faults in the noise of single parameters.
        edges: the edges of the bins of observations, (n + 1,).
        within, without: the counts (n,) of observations with the canary, and without it.
    """

    lines: Sequence[str]
    rows: Sequence[tuple[str, float, float, float | None, float]]
    refuted: bool
    faults: Sequence[str]
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
            axes.set_xlabel(AXIS, color=MUTED, labelpad=4)
            axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.3g}%")
            style_axes(axes)

        seen = f"{sum(self.within):,} with a canary and {sum(self.without):,} without one"
        return Markup(inline(draw, name="step", height=HEIGHT, alternative=f"Two histograms of {AXIS}: {seen}."))


def audit(found: Audit | None, promised: str) -> Markup:
    """The section on the audit; empty if there is none.

    Args:
        promised: the promised epsilon, rounded.
    """
    return Markup("" if found is None else render("audit.html.jinja", audit=found, promised=promised))
