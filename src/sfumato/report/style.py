"""How everything looks that the package draws or writes for a browser: one palette, in light and in dark, one sheet."""

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
"""What is printed differs in these from what a screen shows in the light."""
SERIES = tuple(LIGHT[name] for name in ("first", "second", "third", "fourth", "fifth", "sixth"))
INK, MUTED, RULE = LIGHT["ink"], LIGHT["muted"], LIGHT["rule"]


@cache
def stylesheet() -> str:
    """What all pages share: the palette as variables, and the looks of text, tables and plots."""
    own = files("sfumato.report").joinpath("style.css").read_text("utf-8")
    return (
        f":root {{ color-scheme: light dark; {_variables(LIGHT)} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ {_variables(DARK)} }} }}\n"
        f"@media print {{ :root {{ color-scheme: light; {_variables(LIGHT | PAPER)} }} }}\n{own}"
    )


def _variables(colours: dict[str, str]) -> str:
    return " ".join(f"--{name}: {value};" for name, value in colours.items())


@contextmanager
def figures(name: str, size: float = 10) -> Iterator[None]:
    """Figures that are drawn and written here look alike; a matplotlibrc of the reader's own changes nothing.

    Args:
        name: of the figure: its ids are made of it.
        size: of its text, in points.
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


def in_the_dark(svg: str) -> str:
    """An SVG file in the colours of `LIGHT` that takes those of `DARK` where its reader's screen is dark.

    Colours stay written out, so that a program that knows no style sheets shows the light ones.
    """
    rules = "".join(
        f'[style*="{what}: {light}"]{{{what}:{DARK[name]}!important}}'
        for name, light in LIGHT.items()
        for what in ("fill", "stroke")
    )
    return svg.replace("</style>", f"@media (prefers-color-scheme: dark){{{rules}}}</style>", 1)
