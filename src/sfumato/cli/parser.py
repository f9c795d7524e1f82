"""The parser of a verb, made from the fields of its dataclass, with its help page."""

from __future__ import annotations

import argparse
import ast
import functools
import inspect
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, Literal, NoReturn, get_args, get_origin, get_type_hints

from sfumato._choices import nearest
from sfumato.cli.options.pages import COMMON, GROUPS, RUN
from sfumato.cli.options.spellings import Spelling, UsageError, spelling_of
from sfumato.cli.registry import name_of

PROGRAM = "sfumato"
INDENT, NARROWEST, WIDEST, FEW = 24, 60, 110, 6
_KINDS: dict[Any, tuple[Callable[[str], Any], str]] = {
    int: (int, "a whole number"),
    float: (float, "a number"),
    bool: ({"True": True, "False": False}.__getitem__, "True or False"),
}


@dataclass(frozen=True, kw_only=True)
class Option:
    """An option of a verb, or one of its positional arguments.

    Args:
        name: the field's name.
        metavar: the placeholder of its value; empty for a switch.
        purpose: what it is for.
        default: its default value, in parentheses.
        positional: whether it is given without its name.
        reads: how argparse reads its values.
    """

    name: str
    metavar: str
    purpose: str
    default: str = ""
    positional: bool = False
    reads: dict[str, Any] = field(default_factory=dict, compare=False)

    @property
    def flag(self) -> str:
        """The option as it is typed."""
        return f"--{self.name.replace('_', '-')}"

    def text(self, *, short: bool = False) -> str:
        """The purpose, or its first sentence or clause, and the default."""
        purpose = f"{re.split(r'[.;](?: |$)', self.purpose)[0]}." if short else self.purpose
        return f"{purpose} {self.default}".rstrip()


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message, f"see {self.prog} --help")


def parse(verb: type, words: Sequence[str], *, program: str = "", description: str | None = None) -> Any:
    """An instance of the verb with these options, read by its `parser_of`.

    Errors: `UsageError` for words that cannot be read, or that are no option.
    """
    parser, given = parser_of(verb, program=program, description=description), list[str]()
    for word in words:
        if given and given[-1].startswith("--") and re.match(r"-\.?\d", word):
            given[-1] += f"={word}"  # argparse takes -160,240 for an option
        else:
            given.append(word)
    try:
        found, odd = parser.parse_known_intermixed_args(given)
    except argparse.ArgumentError as error:
        parser.error(" ".join(filter(None, (error.argument_name, error.message))))
    for word in sorted(odd, key=lambda word: not word.startswith("-")):
        name = word.partition("=")[0]
        if not name.startswith("-"):
            parser.error(f"one argument too many: {word}")
        flags = {one.name: one.flag for one in _options(verb) if not one.positional}
        near = nearest(name.strip("-").replace("-", "_"), flags)
        few = f"; the options are {', '.join(flags.values())}" if len(flags) <= FEW else ""
        parser.error(f"unknown option {name}{f'; perhaps you meant {flags[near]}' if near else few}")
    return verb(**{name: _tuples(value) for name, value in vars(found).items()})


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def parser_of(
    verb: type, *, every: bool = True, program: str = "", description: str | None = None
) -> argparse.ArgumentParser:
    """The parser of a verb. Its help is as wide as the terminal.

    Args:
        every: whether its help shows all options; otherwise the common ones, with shortened texts, if there are many.
        program, description: the command and its purpose; by default those of the verb.
    """
    name, width = name_of(verb), min(max(shutil.get_terminal_size().columns - 2, NARROWEST), WIDEST)
    program = program or f"{PROGRAM} {name}"
    common = None if every else COMMON.get(name)
    positional, groups = page_of(verb)
    paragraphs = [" ".join(part.split()) for part in (description or verb.__doc__ or "").split("\n\n")]
    parser = _Parser(
        prog=program,
        usage=" ".join(["%(prog)s [OPTIONS]", *(one.metavar for one in positional)]),
        description="\n\n".join(textwrap.fill(text, width) for text in paragraphs),
        epilog=f"{program} --help-all shows every option." if common else None,
        formatter_class=functools.partial(argparse.RawDescriptionHelpFormatter, max_help_position=INDENT, width=width),
        argument_default=argparse.SUPPRESS,
        add_help=False,
        allow_abbrev=False,
        exit_on_error=False,
    )
    arguments = parser.add_argument_group()
    for one in positional:
        arguments.add_argument(one.name, metavar=one.metavar, help=one.text().replace("%", "%%"), **one.reads)
    for title, listed in groups.items():
        group = parser.add_argument_group(title)
        for one in listed:
            shown = one.text(short=bool(common)).replace("%", "%%")
            hidden = common is not None and one.name not in common
            group.add_argument(one.flag, dest=one.name, help=argparse.SUPPRESS if hidden else shown, **one.reads)
        if title == RUN:
            shows = "Show the common options, or every one." if name in COMMON else "Show this page."
            names = ("-h", "--help", "--help-all") if name in COMMON else ("-h", "--help")
            group.add_argument(*names, action="help", help=shows)
    return parser


def page_of(verb: type) -> tuple[list[Option], dict[str, list[Option]]]:
    """The positional arguments of a verb, and its options by group."""
    options = _options(verb)
    left = {one.name: one for one in options if not one.positional}
    grouped = {group: [left.pop(name) for name in names if name in left] for group, names in GROUPS.items()}
    grouped[RUN] = sorted(left.values(), key=lambda one: one.name == "json")
    positional = [one for one in options if one.positional]
    return positional, {group: listed for group, listed in grouped.items() if listed or group == RUN}


@functools.cache
def _options(verb: type) -> tuple[Option, ...]:
    hints, documented = get_type_hints(verb, include_extras=True), _documented(verb)
    return tuple(_option(one, hints[one.name], documented.get(one.name, "")) for one in fields(verb))


def _option(one: Field[Any], hint: Any, purpose: str) -> Option:
    """The option of a field, from its annotation and the text below it."""
    spelling = spelling_of(hint)
    kind = hint if spelling is None else get_args(hint)[0]
    if spelling is None:
        spelling = Spelling(
            {bool: "", int: "NUMBER", float: "NUMBER", tuple: "NAME [NAME ...]"}.get(type(one.default), "NAME")
        )
    default = f"({spelling.default})" if spelling.default else ""
    if own := re.fullmatch(r"(.*) (\(default: .*\))", purpose):
        purpose, default = own.groups()
    elif not default and not spelling.positional and one.default not in (None, False, ()):
        default = "(required)" if one.default is MISSING else f"(default: {one.default})"
    reads = _reads(kind, spelling)
    if spelling.positional:
        if one.default is not MISSING:
            reads["nargs"] = "?"
    elif "action" not in reads or spelling.repeatable:
        reads["required"] = one.default is MISSING
        first, _, others = spelling.metavar.partition(" [")
        reads["metavar"] = (first, others.removesuffix(" ...]")) if reads.get("nargs") == "+" else spelling.metavar
    return Option(
        name=one.name,
        metavar=spelling.metavar,
        purpose=purpose,
        default=default,
        positional=spelling.positional,
        reads=reads,
    )


def _reads(kind: Any, spelling: Spelling) -> dict[str, Any]:
    """How argparse reads values of this kind."""
    if kind is bool:
        return {"action": "store_true"}
    if spelling.read is not None:
        return {"type": _converted(spelling.read)}
    if type(None) in get_args(kind):
        (kind,) = (each for each in get_args(kind) if each is not type(None))
    if get_origin(kind) is Literal:
        allowed = {str(value): value for value in get_args(kind)}
        return {"type": _converted(allowed.__getitem__, " or ".join(allowed))}
    if get_origin(kind) is tuple:
        inner, *more = get_args(kind)
        several = {"nargs": "+" if more == [...] else 1 + len(more)}
        return {**several, "action": "append"} if spelling.repeatable else {**several, **_reads(inner, spelling)}
    return {"type": _converted(*_KINDS[kind])} if kind in _KINDS else {}


def _converted(read: Callable[[str], Any], what: str = "") -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        try:
            return read(text)
        except (ValueError, KeyError) as error:
            raise argparse.ArgumentTypeError(f"must be {what}, got {text!r}" if what else str(error)) from None

    return convert


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
