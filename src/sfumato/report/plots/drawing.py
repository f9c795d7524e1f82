"""What the report's plots and pages share: calm axes, files of fixed bytes, and pages from templates."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from markupsafe import Markup

from sfumato.report.style import MUTED, RULE, figures, in_the_dark, stylesheet

if TYPE_CHECKING:
    from jinja2 import Template
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

SMALL_IMAGE = 64
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


def logarithmic(axis: Axis) -> None:
    """Ticks of a logarithmic axis as plain numbers: at powers of ten, and between them where these are few."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 60 * low else (1.0,)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def beside(axes: Axes, text: str, point: tuple[float, float], offset: tuple[float, float], **looks: Any) -> None:
    """Words at so many points from a point."""
    axes.annotate(text, point, offset, textcoords="offset points", **looks)


def shares(axes: Axes, x: str, y: str) -> None:
    """Ticks from 0 to 1 on both axes, with what they are of."""
    ticks = (0, 0.25, 0.5, 0.75, 1)
    axes.set_xticks(ticks, [f"{tick:.0%}" for tick in ticks])
    axes.set_yticks(ticks, [f"{tick:.0%}" for tick in ticks])
    axes.set_xlabel(x, color=MUTED, labelpad=4)
    axes.set_ylabel(y, color=MUTED, labelpad=6)


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


def rendered(template: str, **values: Any) -> str:
    """The template of this name, filled in; text is escaped, and a value that is missing is an error."""
    return _compiled(template).render(style=Markup(stylesheet()), **values)


@cache
def _compiled(template: str) -> Template:
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(files("sfumato.report").joinpath(template).read_text("utf-8"))


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
