"""How objects and messages are shown: the HTML card of a notebook, and messages that a terminal may leave out."""

from __future__ import annotations

from collections.abc import Sequence

_CARD = (
    '<div style="max-width: 44em; padding: 0.8em 1em; border: 1px solid rgba(128, 128, 128, 0.4); border-radius: 4px">'
    '<div style="font-weight: 600">{title}</div>'
    '<div style="display: flex; flex-wrap: wrap; gap: 0.4em 2em; margin: 0.5em 0">{figures}</div>{note}'
    '<div style="line-height: 1.5">{sentence}</div>{more}</div>'
)
_NOTE = '<div style="margin-bottom: 0.5em; font-style: italic">{note}</div>'
_FIGURE = '<div><span style="font-size: 1.4em">{value}</span> <span style="opacity: 0.75">{name}</span></div>'
_MORE = '<details style="margin-top: 0.5em"><summary>{what}</summary><ul>{lines}</ul></details>'


class Detail(str):
    """A message that `sfumato train` prints only with `--verbose`."""


def card(
    title: str,
    figures: Sequence[tuple[str, str]],
    sentence: str,
    note: str = "",
    *,
    more: tuple[str, Sequence[str]] | None = None,
) -> str:
    """A card as self-contained HTML. It uses the colours of the surrounding page.

    Args:
        figures: pairs (name, value).
        sentence: the guarantee, or a statement that there is none.
        note: a warning to read before showing the figures to others.
        more: the title and the lines of a collapsed section.

    >>> "<script>" in card("<script>", [("test accuracy", "94.7%")], "This model is private.")
    False
    """
    from markupsafe import Markup

    values = Markup("").join(Markup(_FIGURE).format(name=name, value=value) for name, value in figures)
    below, last = Markup(_NOTE).format(note=note) if note else "", Markup("")
    if more is not None and more[1]:
        lines = Markup("").join(Markup("<li>{line}</li>").format(line=line) for line in more[1])
        last = Markup(_MORE).format(what=more[0], lines=lines)
    return str(Markup(_CARD).format(title=title, figures=values, note=below, sentence=sentence, more=last))
