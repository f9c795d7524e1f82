"""A finished run in a notebook: what its page says first, in a few lines of HTML."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

PRIVATE = "Measured on private data: keep it to yourself, and clear this output before the notebook is shown to others."
"""What is said beside a figure that no promise covers."""

_CARD = (
    '<div style="max-width: 44em; padding: 0.8em 1em; border: 1px solid rgba(128, 128, 128, 0.4); border-radius: 4px">'
    '<div style="font-weight: 600">{title}</div>'
    '<div style="display: flex; flex-wrap: wrap; gap: 0.4em 2em; margin: 0.5em 0">{figures}</div>{note}'
    '<div style="line-height: 1.5">{sentence}</div></div>'
)
_NOTE = '<div style="margin-bottom: 0.5em; font-style: italic">{note}</div>'
_FIGURE = '<div><span style="font-size: 1.4em">{value}</span> <span style="opacity: 0.75">{name}</span></div>'


def card(title: str, figures: Sequence[tuple[str, str]], sentence: str, note: str = "") -> str:
    """HTML that needs nothing from elsewhere, in the colours of whatever surrounds it.

    Args:
        figures: (what it is, its value) of each.
        sentence: what is promised, or that nothing is.
        note: what must be known of the figures before they are shown to anybody.

    >>> "<script>" in card("<script>", [("test accuracy", "94.7%")], "This model is private.")
    False
    """
    values = Markup("").join(Markup(_FIGURE).format(name=name, value=value) for name, value in figures)
    below = Markup(_NOTE).format(note=note) if note else ""
    return str(Markup(_CARD).format(title=title, figures=values, note=below, sentence=sentence))
