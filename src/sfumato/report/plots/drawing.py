"""What the report's plots and pages share: calm axes, files of fixed bytes, and pages from templates."""

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

from sfumato.privacy.statements.presented import rounded_up
from sfumato.report.sections.numbers import estimate, percent, significant
from sfumato.report.style import LIGHT, MUTED, RULE, figures, in_the_dark, stylesheet

if TYPE_CHECKING:
    from jinja2 import Environment
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SMALL_IMAGE = 64
# Half the page's column: one plot fills a phone, two stand side by side on a desk.
WIDTH, HEIGHT = 340, 236
_VARIABLES = {value: f"var(--{name})" for name, value in LIGHT.items()}
"""In a finished plot of a page each colour of the palette is replaced by the page's variable of that name."""
NOTHING = dict.fromkeys(("Creator", "Date", "Format", "Type"))
"""What an SVG file would say of its making, and which would change its bytes."""


def calm(axes: Axes, lines: Literal["x", "y", "both"] | None = "y") -> None:
    """Lines from the ticks of one axis behind the points, muted labels, no box but the line below."""
    axes.tick_params(length=0, pad=5, labelcolor=MUTED)
    if lines is not None:
        axes.grid(axis=lines, color=RULE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.patch.set_visible(False)
    for side, spine in axes.spines.items():
        spine.set_color(RULE)
        spine.set_visible(side == "bottom")


def beside(axes: Axes, text: str, point: tuple[float, float], offset: tuple[float, float], **looks: Any) -> None:
    """Words at so many points from a point."""
    axes.annotate(text, point, offset, textcoords="offset points", **looks)


@contextmanager
def plot(name: str, width: float, height: float) -> Iterator[Figure]:
    """A figure of a file of its own, to be drawn and written within."""
    from matplotlib.figure import Figure

    with figures(name, size=8.5):
        yield Figure(figsize=(width, height), layout="constrained")


def svg(figure: Figure, **layout: Any) -> str:
    """The figure as an SVG file, which is dark on a dark screen. Within `figures`, the same figure, the same bytes."""
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata=NOTHING, **layout)
    return in_the_dark(out.getvalue())


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


def rendered(template: str, **values: Any) -> str:
    """The template of this name, filled in; text in HTML is escaped, and a value that is missing is an error."""
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
        "significant": significant,
        "count": "{:,}".format,
        "hundredths": lambda share: f"{100 * share:.2f}",
        "between": lambda ends: "{} to {}".format(*map(percent, ends)),
        "estimate": estimate,
        "up": rounded_up,
        "down": lambda epsilon: f"{int(epsilon * 100) / 100:.2f}",
        "json": json.dumps,
        "plain": lambda text: re.sub(r"([\\`*_{}\[\]<>#|!])", r"\\\1", text),  # where Markdown would make more of it
    }
    found.globals["in_page"] = in_page
    return found


def in_page(png: bytes) -> dict[str, object]:
    """An image for a page: its address, and whether it is so small that its pixels are to be seen."""
    width = int.from_bytes(png[16:20], "big")  # in the header of every PNG file
    return {"source": "data:image/png;base64," + base64.b64encode(png).decode("ascii"), "small": width <= SMALL_IMAGE}


def png(image: np.ndarray) -> bytes:
    """An image uint8 (H, W, 1 or 3) as a PNG file."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image).save(buffer, "PNG")
    return buffer.getvalue()
