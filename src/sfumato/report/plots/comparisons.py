"""Plots that compare plans or runs, each as an SVG file. The same rows give the same bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sfumato._checks import SfumatoError
from sfumato.report.plots.drawing import annotate, plot, style_axes, svg
from sfumato.report.plots.lines import Axis, Line, MarkedPoint, draw
from sfumato.report.style import INK, MUTED, SERIES

_PANEL = (3.4, 2.7)
_ACROSS = 3
_LOGARITHMIC_FROM = 20
MOST_NAMED = 24
"""The largest number of runs for which the bars have names."""
_DOTS: dict[str, Any] = {"marker": "o", "linestyle": "none", "markersize": 4, "alpha": 0.6}
_RING: dict[str, Any] = {
    "marker": "o",
    "linestyle": "none",
    "markersize": 12,
    "markerfacecolor": "none",
    "color": INK,
    "markeredgewidth": 1.2,
}


def check(path: str) -> None:
    """Refuse the path of a plot that cannot be written, before anything is computed."""
    if Path(path).suffix.lower() != ".svg":
        raise SfumatoError(f"plot must end with .svg, got {path!r}", "give a file such as a.svg")
    if not Path(path).absolute().parent.is_dir():
        raise SfumatoError(f"plot must lie in a folder that exists, got {path!r}", "make the folder first")


def curve_of_budgets(rows: Sequence[Mapping[str, Any]], without_privacy: float | None = None) -> str:
    """Accuracy against epsilon (Mehta et al. 2022, figure 1b), with the accuracy without privacy as a dashed line.

    Args:
        rows: `epsilon` and `accuracy` of each run, by ascending epsilon.
        without_privacy: the accuracy without privacy; None if it is not known.

    Returns:
        An SVG file.
    """
    points = [(float(row["epsilon"]), float(row["accuracy"])) for row in rows]
    with plot("budgets", 4.6, 3.2) as figure:
        axes = figure.add_subplot()
        axes.margins(y=0.15)
        draw(
            axes,
            [Line(points, look={"marker": "o", "markersize": 4})],
            Axis("epsilon", log=True, ticks=[epsilon for epsilon, _ in points]),
            Axis("test accuracy", share=True),
            levels=None if without_privacy is None else {"without privacy": without_privacy},
        )
        return svg(figure)


def frontiers(rows: Sequence[Mapping[str, Any]], epochs: float | None = None) -> str:
    """The frontier of each batch size: steps against noise, and signal-to-noise against computation.

    The left panel shows the largest number of steps that each noise multiplier allows. The right panel shows the
    signal-to-noise ratio of the run, as a share of the full-batch limit, against expected epochs. Where a curve is
    flat, more computation gains little. The recommended point of each batch size has a ring.

    Args:
        rows: `Frontier.to_dict` of each batch size.
        epochs: the allowed number of expected epochs, drawn as a vertical line.

    Returns:
        An SVG file.
    """
    with plot("tradeoff", 10.4, 4.0) as figure:
        for place, (across, up) in enumerate(
            (
                (Axis("noise multiplier", log=True), Axis("most steps", log=True)),
                (Axis("expected epochs", log=True), Axis("signal-to-noise, of the limit", (0, 1.06), share=True)),
            )
        ):
            names = ("noise_multiplier", "steps") if place == 0 else ("expected_epochs", "share_of_limit")
            axes = figure.add_subplot(1, 2, place + 1)
            found = [[tuple(float(point[name]) for name in names) for point in row["points"]] for row in rows]
            lines = [
                Line(points, f"batch size {row['batch_size']:,}")  # type: ignore[arg-type]
                for points, row in zip(found, rows, strict=True)
            ]
            taken = [
                own
                for points, row in zip(found, rows, strict=True)
                for own, point in zip(points, row["points"], strict=True)
                if point["take"]
            ]
            rings = [Line([own], look=_RING) for own in taken]  # type: ignore[list-item]
            draw(axes, [*lines, *rings], across, up, grid="both", levels={"flat: 95%": 0.95} if place else None)
            if place and epochs is not None:
                axes.axvline(epochs, color=MUTED, linewidth=0.8, linestyle=(0, (4, 3)))
                annotate(axes, f"{epochs:g} allowed", (epochs, 0), (4, 4), color=MUTED)
        return svg(figure)


def spending(rows: Sequence[Mapping[str, Any]], total: str) -> str:
    """The spending of a budget as a waterfall chart: each run's bar begins where the previous one ends.

    Args:
        rows: `run`, `share` and `used` of each run, in their order.
        total: a description of the whole budget.

    Returns:
        An SVG file.
    """
    with plot("spending", max(4.6, 1.6 + 0.3 * len(rows)), 3.2) as figure:
        axes, places = figure.add_subplot(), range(len(rows))
        shares = [100 * row["share"] for row in rows]
        axes.bar(places, shares, 0.7, bottom=[100 * (row["used"] - row["share"]) for row in rows], color=SERIES[0])
        axes.axhline(100, color=SERIES[1], linewidth=1, linestyle="--")
        annotate(axes, total, (-0.5, 100), (0, 3), color=SERIES[1])
        named = len(rows) <= MOST_NAMED
        axes.set_xticks(places if named else [], [row["run"] for row in rows] if named else [], rotation=30, ha="right")
        axes.set_xlabel("runs, in the order in which they were reserved" if rows else "no run yet", color=MUTED)
        axes.set_ylabel("used, %")
        axes.set_xlim(-0.6, max(0.6, len(rows) - 0.4))
        axes.set_ylim(0, 115)
        style_axes(axes)
        return svg(figure)


def figure_of(row: Mapping[str, Any]) -> str:
    """The name of the main figure: recall for embeddings, else accuracy.

    >>> figure_of({"recall": 0.5, "far": 0.001}), figure_of({"accuracy": 0.5})
    ('recall', 'accuracy')
    """
    return "recall" if "recall" in row else "accuracy"


def sweep_panels(rows: Sequence[Mapping[str, Any]], varied: Sequence[str]) -> str:
    """One panel for each varied setting. Each panel marks the best run.

    Args:
        rows: the runs of a search: `accuracy` or `recall`, and a value for each varied setting.
        varied: the names of the settings.

    Returns:
        An SVG file.
    """
    across = min(_ACROSS, len(varied))
    down = -(-len(varied) // across)
    with plot("sweep", _PANEL[0] * across, _PANEL[1] * down) as figure:
        measured = figure_of(rows[0])
        heights = [float(row[measured]) for row in rows]
        best = heights.index(max(heights))
        for place, name in enumerate(varied):
            axes = figure.add_subplot(down, across, place + 1)
            positions, labels = _positions([row[name] for row in rows])
            wide = labels is None and min(positions) > 0 and max(positions) >= _LOGARITHMIC_FROM * min(positions)
            axes.margins(0.15, 0.1)
            draw(
                axes,
                [Line([*zip(positions, heights, strict=True)], look=_DOTS)],
                Axis(name.replace("_", " "), log=wide, names=labels),
                Axis("" if place % across else f"validation {measured}", share=True),
                marked=[MarkedPoint((positions[best], heights[best]))],
            )
        return svg(figure)


def _positions(values: Sequence[Any]) -> tuple[list[float], list[str] | None]:
    """The positions of the values, and their labels. More than six different numbers stand at their values, without
    labels. All other values are spaced evenly."""
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
