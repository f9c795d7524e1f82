"""The line plots and the heat map of a page, as inline SVG in the page's colours. Same numbers, same bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sfumato.privacy.statements.display import rounded_up
from sfumato.report.plots.drawing import (
    HEIGHT,
    MUTED,
    RULE,
    SERIES,
    WIDTH,
    Axis,
    Line,
    MarkedPoint,
    draw,
    figure_style,
    inline,
    plot,
    style_axes,
    svg,
    ticks,
)
from sfumato.report.sections.numbers import percent, significant

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


Curve = Sequence[tuple[float, float]]
_COLOURS = {"accuracy": SERIES[0], "loss": SERIES[1], "recall": SERIES[0]}
_MOST_POINTS = 400
_MOST_CELLS = 250
_SHADES = 24


def curve(rows: Sequence[Mapping[str, Any]], key: str, levels: Mapping[str, float] | None = None) -> str:
    """One figure against steps, with the spent epsilon on a second axis at the top.

    Args:
        rows: the metrics of a run. Rows without a finite value of `key` are skipped.
        key: "accuracy", "loss" or "recall". The steps of recall are called rounds.
        levels: reference levels for accuracy by name, drawn as lines.

    Returns:
        An `<svg>` element; an empty string if no row has the figure.
    """
    points = _thinned([(int(row["step"]), float(row[key])) for row in rows if _finite(row.get(key))])
    if not points:
        return ""
    unit, share = ("round" if key == "recall" else "step"), key != "loss"
    show, spent = percent if share else significant, epsilon_ticks(rows)
    known = (levels or {}) if key == "accuracy" else {}
    heights = [*(value for _, value in points), *known.values()]
    low, high = min(heights), max(heights)
    margin = 0.12 * (high - low) or 0.05 * max(abs(high), 0.1)
    limits = max(0.0, low - margin), min(1.0 if share else math.inf, high + margin)
    last = points[-1]

    def fill(figure: Figure) -> None:
        axes = figure.add_axes((0.135, 0.18, 0.83, 0.64))
        draw(
            axes,
            [Line(points, look={"color": _COLOURS[key]})],
            Axis(f"{unit}s", (0, max(*(int(row["step"]) for row in rows), 1) * 1.03), whole=True),
            Axis("", limits, share=share),
            levels={f"{name} {percent(value)}": value for name, value in known.items()},
            marked=[MarkedPoint(last, show(last[1]), "above" if not share or last[1] < sum(limits) / 2 else "below")],
        )
        if spent:
            _draw_epsilon(axes.twiny(), axes.get_xlim(), spent)

    alternative = (
        f"Line: {key} on the test split, {show(points[0][1])} at {unit} {points[0][0]:,} and {show(last[1])} at {unit} "
        f"{last[0]:,}, against {unit}s{', with the epsilon spent on a second axis' if spent else ''}."
    )
    return inline(fill, name=key, height=HEIGHT, alternative=alternative)


def roc_file(name: str, curve: Curve, area: float, point: tuple[float, float]) -> str:
    """The ROC curve of one class as an SVG file, with the point of the chosen threshold marked.

    Args:
        curve: (false-positive rate, true-positive rate) at each threshold, ascending.
        area: the area under it.
    """
    from matplotlib.figure import Figure

    quarters = (0, 0.25, 0.5, 0.75, 1)
    with figure_style("receiver"):
        figure = Figure(figsize=(4.6, 4.6))
        axes = figure.add_axes((0.175, 0.15, 0.785, 0.81))
        draw(
            axes,
            [Line(curve, f"{name if len(name) <= 20 else name[:19] + '…'}  {percent(area)}")],
            Axis("others taken for it", (-0.01, 1), share=True, ticks=quarters),
            Axis("of the class, found", (0, 1.01), share=True, ticks=quarters),
            diagonal=True,
            marked=[MarkedPoint(point)],
            grid="both",
        )
        legend = axes.legend(loc="lower right", frameon=False, fontsize="small", title="area under the curve")
        legend.get_title().set_color(MUTED)
        return svg(figure, bbox_inches="tight")


def recall_curve(points: Sequence[Mapping[str, Any]], marked: float | None = None) -> str:
    """Recall against the false accept rate on a logarithmic axis, for the page.

    Args:
        points: `at_far`, above 0, and `recall` of each operating point, by ascending rate.
        marked: the false accept rate of the point to mark, if any.

    Returns:
        An `<svg>` element; an empty string without points.
    """
    if not points:
        return ""
    found = [(float(point["at_far"]), float(point["recall"])) for point in points]
    first, last = found[0][0], found[-1][0]
    chosen = next((place for place, (rate, _) in enumerate(found) if rate == marked), None)
    own = found[:0] if chosen is None else [found[chosen]]
    limits = first / (1.1 if len(found) > 1 else 10), max(last, 10 * first) * 1.1
    shown = [
        f"{percent(found[place][1])} at {significant(found[place][0])}"
        for place in sorted({0, len(found) - 1, chosen or 0})
    ]
    return inline(
        lambda figure: draw(
            figure.add_axes((0.135, 0.18, 0.83, 0.76)),
            [Line(found)],
            Axis("false accept rate", limits, log=True),
            Axis("", (0, 1.02), share=True),
            marked=[MarkedPoint(one, percent(one[1]), "above left" if one[1] < 0.85 else "below right") for one in own],
        ),
        name="roc",
        height=HEIGHT,
        alternative=f"Line: recall against the false accept rate, {', '.join(shown)}.",
    )


def _draw_epsilon(top: Axes, limits: tuple[float, float], ticks: Sequence[tuple[float, str]]) -> None:
    """Draw the spent epsilon on the axis at the top."""
    top.set_xlim(*limits)
    top.set_xticks([step for step, _ in ticks], [text for _, text in ticks])
    top.set_xlabel("epsilon spent", color=MUTED, labelpad=7)
    style_axes(top, None)
    top.tick_params(length=4, pad=3, color=RULE)
    top.spines["top"].set_visible(True)
    top.spines["bottom"].set_visible(False)


def epsilon_ticks(rows: Sequence[Mapping[str, Any]]) -> list[tuple[float, str]]:
    """The step at each quarter of the run, and the epsilon spent until then, interpolated and rounded up."""
    import numpy as np

    spent = sorted((int(row["step"]), float(row["epsilon"])) for row in rows if _finite(row.get("epsilon")))
    if not spent:
        return []
    steps, epsilons = zip(*spent, strict=True)
    quarters = [steps[-1] * quarter / 4 for quarter in range(1, 5)]
    found = np.interp(quarters, steps, epsilons, left=np.nan)
    return [(at, rounded_up(value, 2)) for at, value in zip(quarters, found.tolist(), strict=True) if value == value]


def heat_map(confusion: Sequence[Sequence[int]]) -> str:
    """A confusion matrix of many classes as a heat map without numbers.

    Each row is divided by its sum. With more than 250 classes, neighbouring classes share a cell, which keeps the file
    small.

    Args:
        confusion: counts (classes, classes), one row per true class.
    """
    import numpy as np

    counts = np.asarray(confusion, dtype=np.float64)
    classes = len(counts)
    block = -(-classes // _MOST_CELLS)
    if block > 1:
        padding = -classes % block
        counts = np.pad(counts, (0, padding))
        cells = len(counts) // block
        counts = counts.reshape(cells, block, cells, block).sum(axis=(1, 3))
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    # The square root makes rare confusions visible. Few shades compress well.
    opacity = np.ceil(np.sqrt(share) * _SHADES) / _SHADES
    image = np.zeros((*share.shape, 4))
    image[..., :3] = np.array([0x4F, 0x8A, 0x8B]) / 255
    image[..., 3] = opacity
    image[opacity == 0] = 0

    def draw(figure: Figure) -> None:
        axes = figure.add_axes((0.14, 0.13, 0.84, 0.84))
        axes.imshow(image, interpolation="none", extent=(0, classes, classes, 0), aspect="auto")
        for axis in (axes.xaxis, axes.yaxis):
            ticks(axis, Axis("", whole=True))
        axes.set_xlabel("predicted class, by its place in the list", color=MUTED)
        axes.set_ylabel("true class", color=MUTED)
        style_axes(axes, None)
        for spine in axes.spines.values():
            spine.set_visible(True)

    return inline(
        draw,
        name="confusion",
        height=WIDTH,
        alternative=f"Heat map: for each of {classes:,} true classes, the share of its test images by predicted class.",
    )


def _finite(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _thinned(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    if len(points) <= _MOST_POINTS:
        return points
    stride = (len(points) - 1) / (_MOST_POINTS - 1)
    return [points[round(index * stride)] for index in range(_MOST_POINTS)]


_PANEL = (3.4, 2.7)
_ACROSS = 3
_LOGARITHMIC_FROM = 20
_DOTS: dict[str, Any] = {"marker": "o", "linestyle": "none", "markersize": 4, "alpha": 0.6}


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
