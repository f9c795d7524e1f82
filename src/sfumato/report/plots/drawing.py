"""Shared by all plots and pages of reports: the style of axes, reproducible SVG files, and templates."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from markupsafe import Markup

from sfumato.privacy.statements.display import percent_up, rounded_up
from sfumato.report.sections.numbers import estimate, percent, significant
from sfumato.report.style import LIGHT, MUTED, RULE, add_dark_mode, figure_style, stylesheet

if TYPE_CHECKING:
    from jinja2 import Environment
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
