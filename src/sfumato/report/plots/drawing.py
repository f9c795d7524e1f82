"""Shared by all plots and pages: the palette, the style of axes, line plots, reproducible SVG files, and templates."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from markupsafe import Markup

from sfumato.privacy.statements.display import percent_up, rounded_up
from sfumato.report.sections.numbers import estimate, percent, significant

if TYPE_CHECKING:
    from jinja2 import Environment
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis as DrawnAxis
    from matplotlib.figure import Figure


LIGHT = {
    "paper": "#fbfaf6",
    "raised": "#f3f0e8",
    "ink": "#23211d",
    "muted": "#66615a",
    "rule": "#d9d4c9",
    "first": "#2b5f66",
    "second": "#94530f",
    "third": "#6b4f8a",
    "fourth": "#4f7a3a",
    "fifth": "#8c2716",
    "sixth": "#3f6ea8",
}
DARK = {
    "paper": "#171613",
    "raised": "#211f1b",
    "ink": "#e9e5dc",
    "muted": "#a8a196",
    "rule": "#3a3630",
    "first": "#8cc0c4",
    "second": "#dca764",
    "third": "#c3aee0",
    "fourth": "#a9d093",
    "fifth": "#f2a18f",
    "sixth": "#9cc2f0",
}
PAPER = {"paper": "#ffffff", "raised": "#f1efe9", "ink": "#000000", "muted": "#4d4a45", "rule": "#c9c4ba"}
"""Colours for print that differ from `LIGHT`."""
SERIES = tuple(LIGHT[name] for name in ("first", "second", "third", "fourth", "fifth", "sixth"))
INK, MUTED, RULE = LIGHT["ink"], LIGHT["muted"], LIGHT["rule"]


@cache
def stylesheet() -> str:
    """The style sheet of all pages: the palette as CSS variables, and the style of text, tables and plots."""
    own = files("sfumato.report").joinpath("style.css").read_text("utf-8")
    return (
        f":root {{ color-scheme: light dark; {_variables(LIGHT)} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ {_variables(DARK)} }} }}\n"
        f"@media print {{ :root {{ color-scheme: light; {_variables(LIGHT | PAPER)} }} }}\n{own}"
    )


def _variables(colours: dict[str, str]) -> str:
    return " ".join(f"--{name}: {value};" for name, value in colours.items())


@contextmanager
def figure_style(name: str, size: float = 10) -> Iterator[None]:
    """Draw and write figures in the house style, whatever the user's matplotlibrc says.

    Args:
        name: the name of the figure, from which the ids in its SVG follow.
        size: the font size in points.
    """
    import matplotlib

    settings: dict[Any, Any] = {
        "font.family": "DejaVu Sans",
        "font.size": size,
        "svg.fonttype": "none",
        "svg.hashsalt": f"sfumato {name}",
        "text.parse_math": False,
        "text.color": INK,
        "axes.linewidth": 0.8,
        "axes.labelcolor": MUTED,
        "figure.facecolor": LIGHT["paper"],
        "savefig.facecolor": "auto",
    }
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(settings)
        yield


def add_dark_mode(svg: str) -> str:
    """Add the colours of `DARK` to an SVG file in the colours of `LIGHT`, for screens in dark mode.

    The light colours stay in the file, so that programs without style sheets show them.
    """
    rules = "".join(
        f'[style*="{what}: {light}"]{{{what}:{DARK[name]}!important}}'
        for name, light in LIGHT.items()
        for what in ("fill", "stroke")
    )
    return svg.replace("</style>", f"@media (prefers-color-scheme: dark){{{rules}}}</style>", 1)


SMALL_IMAGE = 64
# Half the width of the page: one plot fills a phone's screen, and two fit side by side on a desktop.
WIDTH, HEIGHT = 340, 236
_VARIABLES = {value: f"var(--{name})" for name, value in LIGHT.items()}
"""The CSS variables that replace the palette's colours in the plots of a page."""
NOTHING = dict.fromkeys(("Creator", "Date", "Format", "Type"))
"""Metadata to leave out of SVG files, since it would change their bytes."""


def style_axes(axes: Axes, lines: Literal["x", "y", "both"] | None = "y") -> None:
    """Style axes: grid lines behind the points, muted labels, and no frame except the bottom line."""
    axes.tick_params(length=0, pad=5, labelcolor=MUTED)
    if lines is not None:
        axes.grid(axis=lines, color=RULE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.patch.set_visible(False)
    for side, spine in axes.spines.items():
        spine.set_color(RULE)
        spine.set_visible(side == "bottom")


def annotate(axes: Axes, text: str, point: tuple[float, float], offset: tuple[float, float], **looks: Any) -> None:
    """Write text at this offset from a point, in typographic points."""
    axes.annotate(text, point, offset, textcoords="offset points", **looks)


@contextmanager
def plot(name: str, width: float, height: float) -> Iterator[Figure]:
    """A figure for a separate file. Draw and write it inside the context."""
    from matplotlib.figure import Figure

    with figure_style(name, size=8.5):
        yield Figure(figsize=(width, height), layout="constrained")


def svg(figure: Figure, **layout: Any) -> str:
    """The figure as an SVG file with colours for dark mode. Within `figure_style` its bytes are reproducible."""
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata=NOTHING, **layout)
    return add_dark_mode(out.getvalue())


def inline(
    draw: Callable[[Figure], None],
    *,
    name: str,
    height: int,
    alternative: str,
    colours: Mapping[str, str] | None = None,
) -> str:
    """A plot as an `<svg>` element of a page.

    Args:
        draw: draws on a figure of the page's width, in colours that are replaced by the page's CSS variables.
        name: the name of the plot, unique on a page.
        height: the height in pixels.
        alternative: a description of the plot for screen readers.
        colours: the CSS variables that replace further colours.
    """
    from matplotlib.figure import Figure

    with figure_style(name, size=11.5):
        figure = Figure(figsize=(WIDTH / 72, height / 72))
        figure.patch.set_visible(False)
        draw(figure)
        written = io.StringIO()
        figure.savefig(written, format="svg", metadata=NOTHING)
    return _inline(written.getvalue(), name, height, alternative, {**_VARIABLES, **(colours or {})})


def _inline(text: str, name: str, height: int, alternative: str, colours: Mapping[str, str]) -> str:
    """Matplotlib's file as an element of a page: no prologue, unique ids, and the page's font and colours."""
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


def render(template: str, **values: Any) -> str:
    """Render a template. Text in HTML is escaped, and a missing value is an error."""
    return _environment().get_template(template).render(style=Markup(stylesheet()), **values)


@cache
def _environment() -> Environment:
    import jinja2

    found = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: files("sfumato.report").joinpath(name).read_text("utf-8")),
        autoescape=lambda name: name is not None and name.endswith(".html.jinja"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {
        "percent": percent,
        "percent_up": percent_up,
        "significant": significant,
        "count": "{:,}".format,
        "hundredths": lambda share: f"{100 * share:.2f}",
        "between": lambda ends: "{} to {}".format(*map(percent, ends)),
        "estimate": estimate,
        "up": rounded_up,
        "down": lambda epsilon: f"{int(epsilon * 100) / 100:.2f}",
        "json": json.dumps,
        "plain": lambda text: re.sub(r"([\\`*_{}\[\]<>#|!])", r"\\\1", text),  # escape Markdown
    }
    found.globals["in_page"] = image_data
    return found


def image_data(png: bytes) -> dict[str, object]:
    """An image for a page: its data URL, and whether it is small enough to show its pixels."""
    width = int.from_bytes(png[16:20], "big")  # the width in the PNG header
    return {"source": "data:image/png;base64," + base64.b64encode(png).decode("ascii"), "small": width <= SMALL_IMAGE}


def png(image: np.ndarray) -> bytes:
    """An image uint8 (H, W, 1 or 3) as a PNG file."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image).save(buffer, "PNG")
    return buffer.getvalue()


Corner = Literal["above", "below", "above left", "below right"]
_LINE: dict[str, Any] = {"linewidth": 1.8, "solid_capstyle": "round", "solid_joinstyle": "round"}
_DASHED: dict[str, Any] = {"linewidth": 0.8, "linestyle": (0, (4, 3)), "color": MUTED}
_BESIDE: dict[Corner, tuple[tuple[float, float], dict[str, str]]] = {
    "above": ((0, 9), {"ha": "right"}),
    "below": ((0, -17), {"ha": "right"}),
    "above left": ((-6, 5), {"ha": "right", "va": "bottom"}),
    "below right": ((7, -4), {"ha": "left", "va": "top"}),
}


class Axis(NamedTuple):
    """The settings of an axis.

    Attributes:
        label: the text at the axis.
        limits: its ends; None to fit them to the points.
        log: whether it is logarithmic.
        share: whether its values are shares, shown in percent.
        ticks: the positions of its ticks; None to choose them by rule.
        whole: whether its values are whole numbers.
        names: the names of the values 0, 1, 2, ...
    """

    label: str
    limits: tuple[float, float] | None = None
    log: bool = False
    share: bool = False
    ticks: Sequence[float] | None = None
    whole: bool = False
    names: Sequence[str] | None = None


class Line(NamedTuple):
    """One line: its points, its label in the legend, and its style."""

    points: Sequence[tuple[float, float]]
    label: str = ""
    look: Mapping[str, Any] = {}


class MarkedPoint(NamedTuple):
    """A marked point of a line, with a text at one of its corners."""

    point: tuple[float, float]
    label: str = ""
    corner: Corner = "above"


def draw(
    axes: Axes,
    lines: Sequence[Line],
    x: Axis,
    y: Axis,
    *,
    levels: Mapping[str, float] | None = None,
    diagonal: bool = False,
    marked: Sequence[MarkedPoint] = (),
    grid: Literal["x", "y", "both"] = "y",
) -> None:
    """Draw lines on these axes, each in its own colour.

    Args:
        axes: the axes of a figure.
        lines, x, y: the lines and the settings of both axes.
        levels: horizontal reference lines by name. Their names stand together above the highest line.
        diagonal: draw a line from corner to corner.
        marked: points to mark in the first line's colour.
        grid: the axis whose ticks have grid lines.
    """
    for own, scale in ((x, axes.set_xscale), (y, axes.set_yscale)):
        if own.log:
            scale("log")
    if diagonal and x.limits is not None:
        axes.plot((x.limits[0], 1), (x.limits[0], 1), **_DASHED | {"color": RULE, "linewidth": 1})
    for place, line in enumerate(lines):
        # Matplotlib omits labels that begin with an underscore from the legend, and class names may begin with one.
        label = f"\u200b{line.label}" if line.label else None
        looks = {"color": SERIES[place % len(SERIES)], **_LINE, **line.look}
        axes.plot(*zip(*line.points, strict=True), **looks, label=label)
    for own, limit in ((x, axes.set_xlim), (y, axes.set_ylim)):
        if own.limits is not None:
            limit(*own.limits)
    for level in (levels or {}).values():
        axes.axhline(level, **_DASHED)
    if levels:
        looks = {"xycoords": axes.get_yaxis_transform(), "ha": "right", "va": "bottom", "fontsize": "small"}
        annotate(axes, ", ".join(levels), (1, max(levels.values())), (0, 3), color=MUTED, **looks)
    for point, words, corner in marked:
        axes.plot(*point, "o", color=SERIES[0], markersize=5, clip_on=False)
        offset, side = _BESIDE[corner]
        annotate(axes, words, point, offset, color=INK, fontweight="bold", **side)
    for own, axis in ((x, axes.xaxis), (y, axes.yaxis)):
        ticks(axis, own)
    axes.set_xlabel(x.label, color=MUTED, labelpad=4)
    axes.set_ylabel(y.label, color=MUTED, labelpad=4)
    if any(line.label for line in lines):
        axes.legend(loc="best", frameon=False, fontsize="small", labelcolor=INK)
    style_axes(axes, grid)
    if x.log and y.limits is not None:
        axes.tick_params(axis="x", pad=9)


def ticks(axis: DrawnAxis, own: Axis) -> None:
    """Set few ticks with short labels."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

    low, high = axis.get_view_interval()
    if own.ticks is not None:
        axis.set_major_locator(FixedLocator(list(own.ticks)))
    elif own.log:
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 60 * low else (1.0,)))
    else:
        axis.set_major_locator(MaxNLocator(5, integer=own.whole, steps=[1, 2, 5, 10]))
    axis.set_minor_locator(NullLocator())
    if own.names is not None:
        axis.set_ticks(range(len(own.names)), own.names)
        return
    words = "{:.4g}%".format if own.share else significant
    axis.set_major_formatter(FuncFormatter(lambda value, _: words(100 * value if own.share else value)))
