"""The plots of several plans or runs, each as one SVG file; the same rows give the same bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sfumato.report.plots.drawing import beside, calm, logarithmic, plot, svg
from sfumato.report.style import SERIES

_PANEL = (3.4, 2.7)
_ACROSS = 3
_LOGARITHMIC_FROM = 20


def curve_of_budgets(rows: Sequence[Mapping[str, Any]], without_privacy: float | None = None) -> str:
    """Accuracy against epsilon (Mehta et al. 2022, figure 1b), with the figure without privacy as a dashed line.

    Args:
        rows: `epsilon` and `accuracy` of each run, by rising epsilon.
        without_privacy: the accuracy without privacy, where it is known.

    Returns:
        an SVG file.
    """
    from matplotlib.ticker import NullLocator

    with plot("budgets", 4.6, 3.2) as figure:
        axes = figure.add_subplot()
        epsilons = [float(row["epsilon"]) for row in rows]
        axes.plot(epsilons, [100 * float(row["accuracy"]) for row in rows], "o-", color=SERIES[0], markersize=4)
        if without_privacy is not None:
            axes.axhline(100 * without_privacy, color=SERIES[1], linewidth=1, linestyle="--")
            beside(axes, "without privacy", (epsilons[0], 100 * without_privacy), (0, 3), color=SERIES[1])
        axes.set_xscale("log")
        axes.set_xticks(epsilons, [f"{epsilon:.3g}" for epsilon in epsilons])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.margins(y=0.15)
        axes.set_xlabel("epsilon")
        axes.set_ylabel("test accuracy, %")
        calm(axes)
        return svg(figure)


def figure_of(row: Mapping[str, Any]) -> str:
    """The name of the one figure that matters most: recall of embeddings, else accuracy.

    >>> figure_of({"recall": 0.5, "far": 0.001}), figure_of({"accuracy": 0.5})
    ('recall', 'accuracy')
    """
    return "recall" if "recall" in row else "accuracy"


def swept(rows: Sequence[Mapping[str, Any]], varied: Sequence[str]) -> str:
    """One panel for each varied setting; the best run stands out in each of them.

    Args:
        rows: the runs of a search: `accuracy` or `recall`, and a value for each varied setting.
        varied: the names of the settings.

    Returns:
        an SVG file.
    """
    across = min(_ACROSS, len(varied))
    down = -(-len(varied) // across)
    with plot("sweep", _PANEL[0] * across, _PANEL[1] * down) as figure:
        figure_name = figure_of(rows[0])
        accuracies = [100 * float(row[figure_name]) for row in rows]
        best = accuracies.index(max(accuracies))
        for place, name in enumerate(varied):
            axes = figure.add_subplot(down, across, place + 1)
            values = [row[name] for row in rows]
            positions, labels = _positions(values)
            axes.scatter(positions, accuracies, s=18, color=SERIES[0], alpha=0.75, linewidths=0)
            axes.scatter(positions[best : best + 1], accuracies[best : best + 1], s=42, color=SERIES[1], linewidths=0)
            if labels is not None:
                axes.set_xticks(range(len(labels)), labels)
                axes.margins(x=0.15)
            elif min(positions) > 0 and max(positions) >= _LOGARITHMIC_FROM * min(positions):
                axes.set_xscale("log")
                logarithmic(axes.xaxis)
            axes.margins(y=0.1)
            axes.set_xlabel(name.replace("_", " "))
            if place % across == 0:
                axes.set_ylabel(f"validation {figure_name}, %")
            calm(axes)
        return svg(figure)


def _positions(values: Sequence[Any]) -> tuple[list[float], list[str] | None]:
    """Where the values stand: numbers at themselves, few of them and everything else side by side, with labels."""
    numbers = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)
    if numbers and all(math.isfinite(value) for value in values) and len(set(values)) > 6:
        return [float(value) for value in values], None
    listed = [_label(value) for value in (sorted(set(values)) if numbers else values)]
    labels = list(dict.fromkeys(listed))
    return [float(labels.index(_label(value))) for value in values], labels


def _label(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    text = ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
    return text if len(text) <= 24 else f"{text[:21]}..."
