"""What `sfumato VERB --help` shows: the common options of a verb, in groups; and `--help TOPIC`, those about something.

`--help all`, or `--help-all`, shows every one.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, fields, replace
from typing import Any, NamedTuple, get_type_hints

from sfumato.cli.options.pages import COMMON, GROUPS, RUN
from sfumato.cli.options.spellings import Spelling, UnclearError, spelling_of
from sfumato.cli.registry import name_of

ALL = "all"
INDENT, NARROWEST, WIDEST = 24, 60, 110


@dataclass(frozen=True, kw_only=True)
class Spelt:
    """How an option is written and what it is for.

    Args:
        name: the field's name.
        usage: such as `--batch-size B`.
        purpose: what it is for.
        default: what stands in for it where it is left out, in parentheses.
    """

    name: str
    usage: str
    purpose: str
    default: str = ""

    @property
    def words(self) -> str:
        """All that is said of it."""
        return f"{self.purpose} {self.default}".rstrip()

    @property
    def short(self) -> Spelt:
        """With the beginning of what it is for."""
        return replace(self, purpose=f"{re.split(r'[.;](?: |$)', self.purpose)[0]}.")


class Page(NamedTuple):
    """The positional arguments of a verb, its options by group, and where there are more."""

    positional: list[Spelt]
    options: dict[str, list[Spelt]]
    further: str = ""


def text_of(verb: type, *, every: bool) -> str:
    """What there is to show, as wide as the terminal.

    Args:
        every: every option, instead of the common ones with the beginning of what each is for.
    """
    return _text(full(verb) if every or name_of(verb) not in COMMON else common(verb), verb)


def text_about(verb: type, topic: str) -> str:
    """The options about something: `all`, a group, a topic or a word of it, or one option's name.

    Errors: `UnclearError` for a topic that the verb has no options of.
    """
    if topic in ("", ALL):
        return text_of(verb, every=topic == ALL)
    page, wanted = full(verb), _about(topic)
    chosen = {
        group: [one for one in listed if group == topic or one.name in wanted] for group, listed in page.options.items()
    }
    if not any(chosen.values()):
        raise UnclearError(
            f"sfumato {name_of(verb)} has no options about {topic!r}",
            f"give --help and one of {', '.join(topics(page))}, or an option's name",
        )
    return "\n\n".join(_blocks({group: listed for group, listed in chosen.items() if listed}, _width()))


def _about(topic: str) -> set[str]:
    """The options of a group, of a topic by one of its words, or the one of that name."""
    named = topic.lstrip("-").replace("-", "_")
    of_topics = {
        name
        for group, topics in GROUPS.items()
        for whole, names in topics.items()
        if topic in (group, whole) or topic.rstrip("s") in [word.rstrip("s") for word in whole.split()]
        for name in names
    }
    return {named} | of_topics


def topics(page: Page) -> list[str]:
    """The topics that a page has options of."""
    shown = {one.name for listed in page.options.values() for one in listed} - {"help"}
    named = {topic: names for group in GROUPS.values() for topic, names in group.items()}
    found = [topic for topic, names in named.items() if not shown.isdisjoint(names)]
    others = shown - {name for names in named.values() for name in names}
    return [*found, *([RUN] if others else []), ALL]


def _text(page: Page, verb: type) -> str:
    width = _width()
    usage = " ".join([f"usage: sfumato {name_of(verb)} [OPTIONS]", *(one.usage for one in page.positional)])
    blocks = [usage, *(textwrap.fill(text, width) for text in _paragraphs(verb.__doc__ or ""))]
    if page.positional:
        blocks.append("\n".join(line for one in page.positional for line in _lines(one, width)))
    blocks += _blocks(page.options, width)
    return "\n\n".join([*blocks, *([textwrap.fill(page.further, width)] if page.further else [])])


def _blocks(groups: dict[str, list[Spelt]], width: int) -> list[str]:
    return [
        "\n".join([f"{group}:", *(line for one in options for line in _lines(one, width))])
        for group, options in groups.items()
    ]


def _width() -> int:
    return min(max(shutil.get_terminal_size().columns - 2, NARROWEST), WIDEST)


def full(verb: type) -> Page:
    """The page with every option."""
    hints, documented = get_type_hints(verb, include_extras=True), _documented(verb)
    by_name = {one.name: _spelt(one, hints[one.name], documented.get(one.name, "")) for one in fields(verb)}
    positional = [one for one in by_name.values() if not one.usage.startswith("--")]
    left = {name: one for name, one in by_name.items() if one not in positional}
    options = {
        group: [left.pop(name) for names in topics.values() for name in names if name in left]
        for group, topics in GROUPS.items()
    }
    short = name_of(verb) in COMMON
    shows = "Show the common options; with all, every one; with a topic, its own." if short else "Show this page."
    listed = sorted(left.values(), key=lambda one: one.name == "json")
    options[RUN] = [*listed, Spelt(name="help", usage="-h, --help [TOPIC]" if short else "-h, --help", purpose=shows)]
    return Page(positional, {group: listed for group, listed in options.items() if listed})


def common(verb: type) -> Page:
    """The page with the options that most users need, and the topics of the others."""
    page, name = full(verb), name_of(verb)
    chosen = COMMON[name]
    options = {group: [one.short for one in listed if one.name in chosen] for group, listed in page.options.items()}
    hidden = {
        group: [one for one in listed if one.name not in (*chosen, "help")] for group, listed in page.options.items()
    }
    further = f"sfumato {name} --help TOPIC shows more: {', '.join(topics(page._replace(options=hidden)))}"
    return Page(page.positional, {group: listed for group, listed in options.items() if listed}, further)


def _spelt(one: Field[Any], hint: Any, purpose: str) -> Spelt:
    spelling = spelling_of(hint) or Spelling(_metavar(one))
    if spelling.positional:
        return Spelt(name=one.name, usage=spelling.metavar, purpose=purpose)
    default = f"({spelling.default})" if spelling.default else ""
    if own := re.fullmatch(r"(.*) (\(default: .*\))", purpose):
        purpose, default = own.groups()
    elif not default and one.default not in (None, False, ()):
        default = "(required)" if one.default is MISSING else f"(default: {one.default})"
    usage = f"--{one.name.replace('_', '-')} {spelling.metavar}".rstrip()
    return Spelt(name=one.name, usage=usage, purpose=purpose, default=default)


def _metavar(one: Field[Any]) -> str:
    """How a value is spelt of which nothing was said: a switch has none."""
    kinds = {bool: "", int: "NUMBER", float: "NUMBER"}
    return kinds.get(type(one.default), "NAME")


def _lines(one: Spelt, width: int) -> Iterator[str]:
    first = f"  {one.usage}"
    text = textwrap.wrap(one.words, width - INDENT, break_long_words=False, break_on_hyphens=False)
    if len(first) + 2 > INDENT:
        yield first
    else:
        yield f"{first:<{INDENT}}{text.pop(0)}"
    yield from (f"{'':<{INDENT}}{line}" for line in text)


def _paragraphs(text: str) -> list[str]:
    return [" ".join(part.split()) for part in text.split("\n\n")]


def _documented(verb: type) -> dict[str, str]:
    """What stands below each field, in the class that has declared it last."""
    found: dict[str, str] = {}
    for kind in reversed(verb.__mro__):
        found |= _of_module(kind.__module__).get(kind.__name__, {})
    return found


@functools.cache
def _of_module(name: str) -> dict[str, dict[str, str]]:
    """Of each class of a module, the text below each of its fields."""
    if name == "builtins":
        return {}
    classes = [node for node in ast.parse(inspect.getsource(sys.modules[name])).body if isinstance(node, ast.ClassDef)]
    return {node.name: dict(_texts(node)) for node in classes}


def _texts(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for one, below in zip(node.body, node.body[1:], strict=False):
        match one, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, " ".join(text.split())
