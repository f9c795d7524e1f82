"""What the report's plots and pages share: calm axes, files of fixed bytes, and pages from templates."""

from __future__ import annotations

import io
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from jinja2 import Template
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED = "#222222", "#767676"


def calm(axes: Axes, lines: Literal["x", "y"] = "y") -> None:
    """Lines from the ticks of one axis behind the points, small muted labels, no box."""
    axes.tick_params(colors=MUTED, labelsize=8)
    axes.grid(axis=lines, color="#e4e4e4", linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def svg(figure: Figure, name: str) -> str:
    """The figure as an SVG file: the same figure and name, the same bytes."""
    import matplotlib

    out = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": f"sfumato {name}"}):
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return out.getvalue()


def rendered(template: str, **values: Any) -> str:
    """The template of this name, filled in; text is escaped, and a value that is missing is an error."""
    return _compiled(template).render(**values)


@cache
def _compiled(template: str) -> Template:
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(files("sfumato.report").joinpath(template).read_text("utf-8"))


def png(image: np.ndarray) -> bytes:
    """An image uint8 (H, W, 1 or 3) as a PNG file."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image).save(buffer, "PNG")
    return buffer.getvalue()
