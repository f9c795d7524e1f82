"""The page's plots as inline SVG: same numbers, same bytes; colours are the page's own, in light and in dark mode."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from sfumato.privacy.statements.presented import rounded_up
from sfumato.report.plots.drawing import NOTHING, beside, calm
from sfumato.report.sections.numbers import percent, significant
from sfumato.report.style import INK, LIGHT, MUTED, RULE, SERIES, figures

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# In the finished SVG each colour of the palette is replaced by the page's variable of that name.
_VARIABLES = {value: f"var(--{name})" for name, value in LIGHT.items()}
_SERIES = {"accuracy": SERIES[0], "loss": SERIES[1], "recall": SERIES[0]}

# Half the page's column: one plot fills a phone, two stand side by side on a desk.
WIDTH, HEIGHT = 340, 236
_MOST_POINTS = 400
_MOST_CELLS = 250
_SHADES = 24


def curve(rows: Sequence[Mapping[str, Any]], key: str, levels: Mapping[str, float] | None = None) -> str:
    """One figure against steps, with the epsilon spent on a second axis along the top.

    Args:
        rows: the metrics of a run; rows without `key`, or with NaN or Inf there, are passed over.
        key: "accuracy", "loss", or "recall", whose steps are rounds.
        levels: of accuracy, what it must be compared with: each is a line, by name.

    Returns:
        an `<svg>` element, or an empty string where no row has the figure.
    """
    points = [(int(row["step"]), float(row[key])) for row in rows if _finite(row.get(key))]
    if not points:
        return ""
    points = _thinned(points)
    steps, values = [point[0] for point in points], [point[1] for point in points]
    colour = _SERIES[key]
    unit, share = ("round" if key == "recall" else "step"), key != "loss"
    show = percent if share else significant
    ticks = epsilon_ticks(rows)
    lines = sorted((levels or {}).items(), key=lambda level: level[1]) if key == "accuracy" else []

    def draw(figure: Figure) -> None:
        from matplotlib.ticker import FuncFormatter, MaxNLocator

        axes = figure.add_axes((0.135, 0.18, 0.83, 0.64))
        axes.plot(steps, values, color=colour, linewidth=1.8, solid_capstyle="round", solid_joinstyle="round")
        axes.plot(steps[-1:], values[-1:], "o", color=colour, markersize=5, clip_on=False)
        last = max(int(row["step"]) for row in rows)
        axes.set_xlim(0, max(last, 1) * 1.03)
        low, high = min(*values, *(level for _, level in lines), math.inf), max(values)
        _draw_levels(axes, lines)
        margin = 0.12 * (high - low) or 0.05 * max(abs(high), 0.1)
        ceiling = 1.0 if share else math.inf
        axes.set_ylim(max(0.0, low - margin), min(ceiling, high + margin))
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]))
        axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))
        axes.yaxis.set_major_formatter(
            FuncFormatter(lambda value, _: f"{100 * value:.4g}%" if share else f"{value:.4g}")
        )
        axes.set_xlabel(f"{unit}s", color=MUTED, labelpad=4)
        above = 9 if not share or values[-1] < sum(axes.get_ylim()) / 2 else -17
        beside(axes, show(values[-1]), (steps[-1], values[-1]), (0, above), ha="right", color=INK, fontweight="bold")
        if ticks:
            _draw_epsilon(axes.twiny(), axes.get_xlim(), ticks)
        calm(axes)

    alternative = (
        f"Line: {key} on the test split, {show(values[0])} at {unit} {steps[0]:,} and {show(values[-1])} at {unit} "
        f"{steps[-1]:,}, against {unit}s{', with the epsilon spent on a second axis' if ticks else ''}."
    )
    return inline(draw, name=key, height=HEIGHT, alternative=alternative)


def _draw_levels(axes: Axes, lines: Sequence[tuple[str, float]]) -> None:
    """Lines at what the figure must be compared with, named over the highest."""
    for _, level in lines:
        axes.axhline(level, color=MUTED, linewidth=0.8, linestyle=(0, (4, 3)))
    if lines:
        named = ", ".join(f"{name} {percent(level)}" for name, level in lines)
        point = (axes.get_xlim()[1], lines[-1][1])
        beside(axes, named, point, (0, 3), ha="right", va="bottom", color=MUTED, fontsize=10)


def _draw_epsilon(top: Axes, limits: tuple[float, float], ticks: Sequence[tuple[float, str]]) -> None:
    """The axis along the top, with the epsilon spent."""
    top.set_xlim(*limits)
    top.set_xticks([step for step, _ in ticks], [text for _, text in ticks])
    top.set_xlabel("epsilon spent", color=MUTED, labelpad=7)
    calm(top, None)
    top.tick_params(length=4, pad=3, color=RULE)
    top.spines["top"].set_visible(True)
    top.spines["bottom"].set_visible(False)


_SMALL = 0.03
"""A mean loss in nats, of one image about -log 0.97: whatever moves below it."""


def surer_of_mistakes(rows: Sequence[Mapping[str, Any]]) -> int | None:
    """The step from which the loss rises although accuracy does not fall, None where it does not.

    A rise counts from a tenth of the least loss on: smaller ones are noise. Without mistakes there are none to be
    surer of, and a loss below that of 97% for each right class is no reason for words.
    """
    known = [row for row in rows if _finite(row.get("loss")) and _finite(row.get("accuracy"))]
    if not known:
        return None
    least, last = min(known, key=lambda row: row["loss"]), known[-1]
    if last["accuracy"] == 1 or last["loss"] < max(1.1 * least["loss"], _SMALL) or last["accuracy"] < least["accuracy"]:
        return None
    return int(least["step"])


def epsilon_ticks(rows: Sequence[Mapping[str, Any]], most: int = 8) -> list[tuple[float, str]]:
    """Where on the axis of steps a round epsilon was spent, and what was spent in the end.

    Epsilon grows with the steps but not in proportion, so its axis has its ticks at round values of epsilon, each at
    the step by which it was spent, found by linear interpolation between rows.

    Returns:
        pairs of step and label, rising, never nearer together than an eighth of the run. The last is the epsilon of
        the last row, rounded up.
    """
    spent = sorted((int(row["step"]), float(row["epsilon"])) for row in rows if _finite(row.get("epsilon")))
    if not spent:
        return []
    last_step, last = spent[-1]
    end = (float(last_step), rounded_up(last, 2))
    if last <= spent[0][1]:
        return [end]
    power = 10.0 ** math.floor(math.log10(last / most))
    spacing = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= last / most)
    ticks: list[tuple[float, str]] = []
    for index in range(1, most + 1):
        value = index * spacing
        for (left, low), (right, high) in pairwise(spent):
            if low <= value <= high and low < high:
                step = left + (right - left) * (value - low) / (high - low)
                if last_step / 8 <= last_step - step and (not ticks or step - ticks[-1][0] >= last_step / 8):
                    ticks.append((step, f"{value:.4g}"))
                break
    return [*ticks, end]


def heat_map(confusion: Sequence[Sequence[int]]) -> str:
    """A confusion matrix of many classes as shades without numbers.

    Each row is divided by its sum. Beyond 250 classes, neighbours share a cell, so that a thousand classes still
    make a small file.

    Args:
        confusion: counts, (classes, classes), one row per true class.
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
    # The square root lifts rare confusions out of the ground; few shades compress well.
    opacity = np.ceil(np.sqrt(share) * _SHADES) / _SHADES
    image = np.zeros((*share.shape, 4))
    image[..., :3] = np.array([0x4F, 0x8A, 0x8B]) / 255
    image[..., 3] = opacity
    image[opacity == 0] = 0

    def draw(figure: Figure) -> None:
        from matplotlib.ticker import MaxNLocator

        axes = figure.add_axes((0.14, 0.13, 0.84, 0.84))
        axes.imshow(image, interpolation="none", extent=(0, classes, classes, 0), aspect="auto")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]))
        axes.set_xlabel("predicted class, by its place in the list", color=MUTED)
        axes.set_ylabel("true class", color=MUTED)
        calm(axes, None)
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


def inline(
    draw: Callable[[Figure], None],
    *,
    name: str,
    height: int,
    alternative: str,
    colours: Mapping[str, str] | None = None,
) -> str:
    """What `draw` draws, as an `<svg>` element of a page.

    Args:
        draw: fills a figure of the page's width, in colours that stand for the page's variables.
        name: of the plot, no two on a page alike.
        height: in pixels.
        alternative: the plot in words.
        colours: which of the page's variables further colours stand for.
    """
    from matplotlib.figure import Figure

    with figures(name, size=11.5):
        figure = Figure(figsize=(WIDTH / 72, height / 72))
        figure.patch.set_visible(False)
        draw(figure)
        written = io.StringIO()
        figure.savefig(written, format="svg", metadata=NOTHING)
    return _inline(written.getvalue(), name, height, alternative, {**_VARIABLES, **(colours or {})})


def _inline(text: str, name: str, height: int, alternative: str, colours: Mapping[str, str]) -> str:
    """Matplotlib's file as an element of a page: no prologue, ids of its own, the page's font and colours."""
    body = text[text.index("<svg") :]
    body = body[body.index(">") + 1 :]
    body = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", body, flags=re.DOTALL)
    body = re.sub(r'<g id="[^"]*"', "<g", body)
    body = re.sub(r'\bid="', f'id="{name}-', body)
    body = re.sub(r'xlink:href="#', f'href="#{name}-', body)
    body = body.replace("xlink:href=", "href=").replace("url(#", f"url(#{name}-")
    body = re.sub(r"font-family: [^;\"]*;? *", "", body)
    body = re.sub(r"font: (?:bold |700 )?([\d.]+px) [^;\"]*", r"font-size: \1", body)
    body = re.sub(r' transform="rotate\(-0 [^"]*"', "", body)
    for sentinel, variable in colours.items():
        body = body.replace(sentinel, variable)
    body = re.sub(r"\s*\n\s*", "\n", body)
    opening = f'<svg class="plot" role="img" aria-label="{alternative}" viewBox="0 0 {WIDTH} {height}">'
    return opening + body.strip()
