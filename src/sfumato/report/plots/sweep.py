"""The plot of a search: accuracy against each setting that was varied, as one SVG file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sfumato.report.plots.drawing import calm, logarithmic, svg
from sfumato.report.style import SERIES, figures

_POINT, _BEST, *_ = SERIES
_PANEL = (3.4, 2.7)
_ACROSS = 3
_LOGARITHMIC_FROM = 20


def swept(rows: Sequence[Mapping[str, Any]], varied: Sequence[str]) -> str:
    """One panel for each varied setting; the best run stands out in each of them.

    The same rows give the same bytes.

    Args:
        rows: the runs of a search: `accuracy`, and a value for each varied setting.
        varied: the names of the settings.

    Returns:
        an SVG file.
    """
    from matplotlib.figure import Figure

    across = min(_ACROSS, len(varied))
    down = -(-len(varied) // across)
    with figures("sweep", size=8.5):
        figure = Figure(figsize=(_PANEL[0] * across, _PANEL[1] * down), layout="constrained")
        accuracies = [100 * float(row["accuracy"]) for row in rows]
        best = accuracies.index(max(accuracies))
        for place, name in enumerate(varied):
            axes = figure.add_subplot(down, across, place + 1)
            values = [row[name] for row in rows]
            positions, labels = _positions(values)
            axes.scatter(positions, accuracies, s=18, color=_POINT, alpha=0.75, linewidths=0)
            axes.scatter(positions[best : best + 1], accuracies[best : best + 1], s=42, color=_BEST, linewidths=0)
            if labels is not None:
                axes.set_xticks(range(len(labels)), labels)
                axes.margins(x=0.15)
            elif min(positions) > 0 and max(positions) >= _LOGARITHMIC_FROM * min(positions):
                axes.set_xscale("log")
                logarithmic(axes.xaxis)
            axes.margins(y=0.1)
            axes.set_xlabel(name.replace("_", " "))
            if place % across == 0:
                axes.set_ylabel("validation accuracy, %")
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
