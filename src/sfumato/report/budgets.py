"""The picture of several privacy budgets: accuracy against epsilon, as one SVG file."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

_INK, _MUTED, _LINE, _PLAIN = "#222222", "#767676", "#3b6ea5", "#b5473c"


def curve_of_budgets(rows: Sequence[Mapping[str, Any]], without_privacy: float | None = None) -> str:
    """Accuracy against epsilon (Mehta et al. 2022, figure 1b), with the figure without privacy as a dashed line.

    The same rows give the same bytes.

    Args:
        rows: `epsilon` and `accuracy` of each run, by rising epsilon.
        without_privacy: the accuracy without privacy, where it is known.

    Returns:
        an SVG file.
    """
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    figure = Figure(figsize=(4.6, 3.2), layout="constrained")
    axes = figure.add_subplot()
    epsilons = [float(row["epsilon"]) for row in rows]
    axes.plot(epsilons, [100 * float(row["accuracy"]) for row in rows], "o-", color=_LINE, markersize=4)
    if without_privacy is not None:
        axes.axhline(100 * without_privacy, color=_PLAIN, linewidth=1, linestyle="--")
        axes.annotate(
            "without privacy", (epsilons[0], 100 * without_privacy), (0, 3), textcoords="offset points", color=_PLAIN
        )
    axes.set_xscale("log")
    axes.set_xticks(epsilons, [f"{epsilon:.3g}" for epsilon in epsilons])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.margins(y=0.15)
    axes.set_xlabel("epsilon", color=_INK)
    axes.set_ylabel("test accuracy, %", color=_INK)
    axes.tick_params(colors=_MUTED, labelsize=8)
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    out = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "sfumato budgets"}):
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return out.getvalue()
