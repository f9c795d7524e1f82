"""The plot of several privacy budgets: accuracy against epsilon, as one SVG file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sfumato.report.plots.drawing import calm, svg
from sfumato.report.style import SERIES, figures

_LINE, _PLAIN, *_ = SERIES


def curve_of_budgets(rows: Sequence[Mapping[str, Any]], without_privacy: float | None = None) -> str:
    """Accuracy against epsilon (Mehta et al. 2022, figure 1b), with the figure without privacy as a dashed line.

    The same rows give the same bytes.

    Args:
        rows: `epsilon` and `accuracy` of each run, by rising epsilon.
        without_privacy: the accuracy without privacy, where it is known.

    Returns:
        an SVG file.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    with figures("budgets", size=8.5):
        figure = Figure(figsize=(4.6, 3.2), layout="constrained")
        axes = figure.add_subplot()
        epsilons = [float(row["epsilon"]) for row in rows]
        axes.plot(epsilons, [100 * float(row["accuracy"]) for row in rows], "o-", color=_LINE, markersize=4)
        if without_privacy is not None:
            axes.axhline(100 * without_privacy, color=_PLAIN, linewidth=1, linestyle="--")
            axes.annotate(
                "without privacy",
                (epsilons[0], 100 * without_privacy),
                (0, 3),
                textcoords="offset points",
                color=_PLAIN,
            )
        axes.set_xscale("log")
        axes.set_xticks(epsilons, [f"{epsilon:.3g}" for epsilon in epsilons])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.margins(y=0.15)
        axes.set_xlabel("epsilon")
        axes.set_ylabel("test accuracy, %")
        calm(axes)
        return svg(figure)
