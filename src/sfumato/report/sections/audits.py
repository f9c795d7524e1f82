"""What audits of a run have found: lower bounds beside the promise, and what they were seen by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from markupsafe import Markup

from sfumato.report.plots.drawing import HEIGHT, beside, calm, inline, rendered
from sfumato.report.style import MUTED, SERIES

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """What was seen with and without canaries, counted.

    Attributes:
        name: of the plot, no two on a page alike.
        axis: what was seen.
        edges: of the bins, (n + 1,).
        within, without: counts (n,) with the canary, and without it.
    """

    name: str
    axis: str
    edges: Sequence[float]
    within: Sequence[int]
    without: Sequence[int]

    @property
    def picture(self) -> Markup:
        """Both as steps over one axis, as an `<svg>` element."""
        sides = (("canary in", self.within, SERIES[1]), ("canary out", self.without, SERIES[0]))

        def draw(figure: Figure) -> None:
            axes = figure.add_axes((0.135, 0.18, 0.83, 0.74))
            for place, (name, counts, colour) in enumerate(sides):
                shares = [count / max(1, sum(counts)) for count in counts]
                axes.stairs(shares, self.edges, color=colour, linewidth=1.8)
                corner = (self.edges[0], max(max(shares), 1e-9))
                beside(axes, name, corner, (4, -2 - 14 * place), va="top", color=colour, fontsize=10)
            axes.set_xlabel(self.axis, color=MUTED, labelpad=4)
            axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.3g}%")
            calm(axes)

        seen = f"{sum(self.within):,} with a canary and {sum(self.without):,} without one"
        words = f"Two histograms of {self.axis}: {seen}."
        return Markup(inline(draw, name=self.name, height=HEIGHT, alternative=words))


@dataclass(frozen=True, kw_only=True)
class Audit:
    """One audit.

    Attributes:
        heading: what was audited.
        words: how, in sentences.
        rows: of each bound: what it presumes, the epsilon that it proves, the largest that it could have proven, the
            largest factor on the noise that it would have noticed (None for none), and its confidence (None for an
            estimate).
        refuted: whether a bound lies above the promise.
        histogram: what was seen.
        faults: what is wrong with the noise of single parameters.
    """

    heading: str
    words: Sequence[str]
    rows: Sequence[tuple[str, float, float, float | None, float | None]]
    refuted: bool
    histogram: Histogram
    faults: Sequence[str] = ()


def audits(found: Sequence[Audit], promised: str) -> Markup:
    """The section; empty where nothing was audited.

    Args:
        promised: the promised epsilon, rounded.
    """
    if not found:
        return Markup("")
    return Markup(rendered("audits.html.jinja", audits=found, promised=promised))
