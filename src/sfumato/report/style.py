"""The style of all plots and pages: one palette, light and dark, and one style sheet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from typing import Any

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
