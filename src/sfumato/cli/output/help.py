"""Help pages. `sfumato VERB --help` shows a verb's common options in groups, `--help TOPIC` those on a topic.

`--help all` and `--help-all` show all options.
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
from sfumato.cli.options.spellings import Spelling, UsageError, spelling_of
from sfumato.cli.registry import name_of

ALL = "all"
INDENT, NARROWEST, WIDEST = 24, 60, 110


@dataclass(frozen=True, kw_only=True)
class OptionHelp:
    """The help on one option.

    Args:
        name: the field's name.
        usage: such as `--batch-size B`.
        purpose: what it is for.
        default: its default value, in parentheses.
    """

    name: str
    usage: str
    purpose: str
    default: str = ""

    @property
    def text(self) -> str:
        """The purpose and the default."""
        return f"{self.purpose} {self.default}".rstrip()

    @property
    def short(self) -> OptionHelp:
        """The same option with the first sentence or clause of its purpose."""
        return replace(self, purpose=f"{re.split(r'[.;](?: |$)', self.purpose)[0]}.")


class Page(NamedTuple):
    """The positional arguments of a verb, its options by group, and a hint at further options."""

    positional: list[OptionHelp]
    options: dict[str, list[OptionHelp]]
    hint: str = ""


def help_text(verb: type, *, every: bool) -> str:
    """The help page of a verb, as wide as the terminal.

    Args:
        every: show all options; otherwise the common ones, with shortened texts, if the verb has many options.
    """
    return _text(full_page(verb) if every or name_of(verb) not in COMMON else common_page(verb), verb)


def topic_text(verb: type, topic: str) -> str:
    """The options on a topic: `all`, a group, a topic or one of its words, or the name of an option.

    Errors: `UsageError` if the verb has no options on the topic.
    """
    if topic in ("", ALL):
        return help_text(verb, every=topic == ALL)
    page, wanted = full_page(verb), _matching_options(topic)
    chosen = {
        group: [one for one in listed if group == topic or one.name in wanted] for group, listed in page.options.items()
    }
    if not any(chosen.values()):
        raise UsageError(
            f"sfumato {name_of(verb)} has no options about {topic!r}",
            f"give --help and one of {', '.join(topics(page))}, or an option's name",
        )
    return "\n\n".join(_blocks({group: listed for group, listed in chosen.items() if listed}, _width()))


def _matching_options(topic: str) -> set[str]:
    """The option names for a group, for a topic or one of its words, or for a single option."""
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
    """The topics on which a page has options."""
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
    return "\n\n".join([*blocks, *([textwrap.fill(page.hint, width)] if page.hint else [])])


def _blocks(groups: dict[str, list[OptionHelp]], width: int) -> list[str]:
    return [
        "\n".join([f"{group}:", *(line for one in options for line in _lines(one, width))])
        for group, options in groups.items()
    ]


def _width() -> int:
    return min(max(shutil.get_terminal_size().columns - 2, NARROWEST), WIDEST)


def full_page(verb: type) -> Page:
    """The page with all options."""
    hints, documented = get_type_hints(verb, include_extras=True), _documented(verb)
    by_name = {one.name: _option_help(one, hints[one.name], documented.get(one.name, "")) for one in fields(verb)}
    positional = [one for one in by_name.values() if not one.usage.startswith("--")]
    left = {name: one for name, one in by_name.items() if one not in positional}
    options = {
        group: [left.pop(name) for names in topics.values() for name in names if name in left]
        for group, topics in GROUPS.items()
    }
    short = name_of(verb) in COMMON
    shows = "Show the common options; with all, every one; with a topic, its own." if short else "Show this page."
    listed = sorted(left.values(), key=lambda one: one.name == "json")
    options[RUN] = [
        *listed,
        OptionHelp(name="help", usage="-h, --help [TOPIC]" if short else "-h, --help", purpose=shows),
    ]
    return Page(positional, {group: listed for group, listed in options.items() if listed})


def common_page(verb: type) -> Page:
    """The page with the options that most users need, and the topics of the others."""
    page, name = full_page(verb), name_of(verb)
    chosen = COMMON[name]
    options = {group: [one.short for one in listed if one.name in chosen] for group, listed in page.options.items()}
    hidden = {
        group: [one for one in listed if one.name not in (*chosen, "help")] for group, listed in page.options.items()
    }
    further = f"sfumato {name} --help TOPIC shows more: {', '.join(topics(page._replace(options=hidden)))}"
    return Page(page.positional, {group: listed for group, listed in options.items() if listed}, further)


def _option_help(one: Field[Any], hint: Any, purpose: str) -> OptionHelp:
    spelling = spelling_of(hint) or Spelling(_metavar(one))
    if spelling.positional:
        return OptionHelp(name=one.name, usage=spelling.metavar, purpose=purpose)
    default = f"({spelling.default})" if spelling.default else ""
    if own := re.fullmatch(r"(.*) (\(default: .*\))", purpose):
        purpose, default = own.groups()
    elif not default and one.default not in (None, False, ()):
        default = "(required)" if one.default is MISSING else f"(default: {one.default})"
    usage = f"--{one.name.replace('_', '-')} {spelling.metavar}".rstrip()
    return OptionHelp(name=one.name, usage=usage, purpose=purpose, default=default)


def _metavar(one: Field[Any]) -> str:
    """The placeholder of a value without a spelling. A switch has none."""
    kinds = {bool: "", int: "NUMBER", float: "NUMBER"}
    return kinds.get(type(one.default), "NAME")


def _lines(one: OptionHelp, width: int) -> Iterator[str]:
    first = f"  {one.usage}"
    text = textwrap.wrap(one.text, width - INDENT, break_long_words=False, break_on_hyphens=False)
    if len(first) + 2 > INDENT:
        yield first
    else:
        yield f"{first:<{INDENT}}{text.pop(0)}"
    yield from (f"{'':<{INDENT}}{line}" for line in text)


def _paragraphs(text: str) -> list[str]:
    return [" ".join(part.split()) for part in text.split("\n\n")]


def _documented(verb: type) -> dict[str, str]:
    """The text below each field, from the most derived class that declares the field."""
    found: dict[str, str] = {}
    for kind in reversed(verb.__mro__):
        found |= _field_texts(kind.__module__).get(kind.__name__, {})
    return found


@functools.cache
def _field_texts(name: str) -> dict[str, dict[str, str]]:
    """For each class of a module, the text below each of its fields."""
    if name == "builtins":
        return {}
    classes = [node for node in ast.parse(inspect.getsource(sys.modules[name])).body if isinstance(node, ast.ClassDef)]
    return {node.name: dict(_texts(node)) for node in classes}


def _texts(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for one, below in zip(node.body, node.body[1:], strict=False):
        match one, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, " ".join(text.split())
