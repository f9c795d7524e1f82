"""What `sfumato VERB --help` and `--help-all` show: the common options of a verb, or all of them, in groups."""

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

import tyro

from sfumato.cli.options.pages import COMMON, GROUPS, RUN
from sfumato.cli.registry import name_of

INDENT, NARROWEST, WIDEST, LINES = 24, 60, 110, 45


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

    def until(self, marks: str) -> Spelt:
        """With the beginning of what it is for, up to one of these marks."""
        of = re.match(r"(?:Of [^:]+: )?", self.purpose)
        assert of is not None
        rest = self.purpose[of.end() :]
        return replace(self, purpose=f"{of[0]}{re.split(rf'[{marks}](?: |$)', rest)[0]}.") if marks else self


class Page(NamedTuple):
    """The positional arguments of a verb, its options by group, and where there are more."""

    positional: list[Spelt]
    options: dict[str, list[Spelt]]
    further: str = ""

    def until(self, marks: str) -> Page:
        """With the beginning of what each option is for."""
        options = {group: [one.until(marks) for one in listed] for group, listed in self.options.items()}
        return self._replace(options=options)


def text_of(verb: type, *, every: bool) -> str:
    """What there is to show, as wide as the terminal.

    Args:
        every: every option, instead of the common ones with as much of what each is for as `LINES` have room for.
    """
    if every or name_of(verb) not in COMMON:
        return _text(full(verb), verb)
    page = common(verb)
    texts = [_text(page.until(marks), verb) for marks in ("", ".", ".;", ".;:")]
    return next((text for text in texts if text.count("\n") < LINES), texts[-1])


def _text(page: Page, verb: type) -> str:
    width = min(max(shutil.get_terminal_size().columns - 2, NARROWEST), WIDEST)
    usage = " ".join([f"usage: sfumato {name_of(verb)} [OPTIONS]", *(one.usage for one in page.positional)])
    blocks = [usage, *(textwrap.fill(text, width) for text in _paragraphs(verb.__doc__ or ""))]
    if page.positional:
        blocks.append("\n".join(line for one in page.positional for line in _lines(one, width)))
    for group, options in page.options.items():
        blocks.append("\n".join([f"{group}:", *(line for one in options for line in _lines(one, width))]))
    return "\n\n".join([*blocks, *([textwrap.fill(page.further, width)] if page.further else [])])


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
    shows = "Show the common options; with --help-all every one." if short else "Show this page."
    listed = sorted(left.values(), key=lambda one: one.name == "json")
    options[RUN] = [*listed, Spelt(name="help", usage="-h, --help", purpose=shows)]
    return Page(positional, {group: listed for group, listed in options.items() if listed})


def common(verb: type) -> Page:
    """The page with the options that most users need, and the topics of the others."""
    page, name = full(verb), name_of(verb)
    chosen = COMMON[name]
    options = {group: [one for one in listed if one.name in chosen] for group, listed in page.options.items()}
    hidden = {one.name for listed in page.options.values() for one in listed} - {*chosen, "help"}
    topics = [topic for group in GROUPS.values() for topic, names in group.items() if not hidden.isdisjoint(names)]
    further = f"sfumato {name} --help-all: also {', '.join([*topics, RUN])}"
    return Page(page.positional, {group: listed for group, listed in options.items() if listed}, further)


def _spelt(one: Field[Any], hint: Any, purpose: str) -> Spelt:
    extras = getattr(hint, "__metadata__", ())
    metavar = next((extra.metavar for extra in extras if getattr(extra, "metavar", None)), _metavar(one))
    if tyro.conf.Positional in extras:
        return Spelt(name=one.name, usage=metavar, purpose=purpose)
    default = next((extra.help_behavior_hint for extra in extras if getattr(extra, "help_behavior_hint", "")), "")
    if own := re.fullmatch(r"(.*) (\(default: .*\))", purpose):
        purpose, default = own.groups()
    elif not default and one.default not in (None, False, ()):
        default = "(required)" if one.default is MISSING else f"(default: {one.default})"
    return Spelt(
        name=one.name, usage=f"--{one.name.replace('_', '-')} {metavar}".rstrip(), purpose=purpose, default=default
    )


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
