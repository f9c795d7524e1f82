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
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args, get_origin, get_type_hints

from sfumato._checks import SfumatoError, shortened
from sfumato._choices import nearest
from sfumato.cli.registry import name_of

PROGRAM = "sfumato"
INDENT, NARROWEST, WIDEST, FEW = 24, 60, 110, 6
GROUPS = {
    group: tuple(names.split())
    for group, names in {
        "budget": (
            "epsilon delta accountant noise_multiplier batch_size steps max_norm agc quantile noise epochs "
            "report_epsilon unit per_user per_step adjacency participation mechanism order groups "
            "largest_batch bands steps_per_tree complete_trees drift drift_shape drift_groups drift_size"
        ),
        "data": (
            "source examples users classes label_columns size channels bit_depth window test_fraction skip_unreadable "
            "class_from user_from public private root download text_column length vocabulary words part label_sets "
            "path_column label_column user_column task"
        ),
        "model": (
            "model pretrained pretrained_weights head head_deviation head_bias head_scale trainable dimension "
            "normalisation public_data public_examples backbone weights resolution resize crop dtype"
        ),
        "training": (
            "method optimizer learning_rate pretrained_rate momentum weight_decay schedule warmup loss "
            "class_prevalence views shift flip zoom crop_area ema ema_form aggregate aggregate_from aggregate_last "
            "aggregate_restart clients grouping client_rate client_momentum client_epochs client_batch_size "
            "client_examples client_loss client_head client_temperature shuffle_buffer reconstruction_steps"
        ),
        "search": "vary one_at_a_time search candidates validation score_on last decay",
    }.items()
}
"""Groups and options in the order of the help pages. Options without a group belong to `RUN`."""

RUN = "run"

COMMON = {
    verb: tuple(names.split())
    for verb, names in {
        "train": "epsilon delta unit examples user_from public model pretrained output dry_run json",
        "embed": (
            "epsilon delta batch_size steps per_user user_from public model pretrained dimension output dry_run json"
        ),
        "pretrain": "batch_size steps public model pretrained learning_rate views output device json",
        "features": "backbone weights resolution whiten_by views dtype user_from public private output device json",
        "sweep": "epsilon unit public vary search candidates validation output dry_run json",
        "plan": (
            "epsilon delta noise_multiplier batch_size steps unit examples users per_user participation mechanism json"
        ),
        "dedup": "user_from backbone weights resolution drop limit output json",
        "spent": "users user_from size test_fraction public root json",
        "evaluate": "part public user_from test_fraction positive threshold plot device json",
    }.items()
}
"""For each verb with many options, those that most users need. `--help-all` shows all of them."""


class UsageError(SfumatoError):
    """A command that cannot be parsed, or lacks a value."""


def refuse_given(why: str, remedy: str = "leave it out", /, **options: Any) -> None:
    """Refuse the first of these options that was given, as in "--far 0.1 is for embeddings; leave it out"."""
    for name, value in options.items():
        if value not in (None, False, ()):
            text = " ".join(map(str, value)) if isinstance(value, tuple) else value
            raise SfumatoError(f"`{name}={shortened(text)}` {why}", remedy)


def required(verb: Any, **examples: Any) -> list[Any]:
    """The values of these options. Refuses a missing one, with the example of a value."""
    for name, example in examples.items():
        if getattr(verb, name) is None:
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(f"{flag} is missing", f"give it, such as {flag} {example}")
    return [getattr(verb, name) for name in examples]


def check_new_file(name: str, path: str | None, suffix: str) -> None:
    """Refuse a file with another suffix, or in a folder that does not exist, before anything is computed."""
    if path is not None and not (Path(path).suffix.lower() == suffix and Path(path).absolute().parent.is_dir()):
        raise SfumatoError(f"{name} must be a {suffix} file in a folder that exists, got {path!r}", f"give a{suffix}")


def option(metavar: str, by_default: str = "", *, default: Any = None, read: Callable[[str], Any] | None = None) -> Any:
    """A field of a verb that is an option. The string literal below the field is its help text.

    A field that declares nothing is an option too, whose placeholder follows from its type.

    Args:
        metavar: the placeholder of its value in the help.
        by_default: a description of the default value.
        read: converts the word after the option; by default its type decides.
    """
    return field(default=default, metadata={"metavar": metavar, "default": by_default, "read": read})


def argument(metavar: str, default: Any = MISSING) -> Any:
    """A field of a verb that is given without a name."""
    return field(default=default, metadata={"metavar": metavar, "default": "", "positional": True})


def numbers(text: str) -> float | tuple[float, ...]:
    """A number, or several separated by commas."""
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"must be a number, or several separated by commas, got {text!r}") from None
    return values if "," in text else values[0]


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
    parser, arguments = parser_of(verb, program=program, description=description), list[str]()
    for word in words:
        if arguments and arguments[-1].startswith("--") and re.match(r"-\.?\d", word):
            arguments[-1] += f"={word}"  # argparse takes -160,240 for an option
        else:
            arguments.append(word)
    try:
        values, odd = parser.parse_known_intermixed_args(arguments)
    except argparse.ArgumentError as error:
        parser.error(" ".join(filter(None, (error.argument_name, error.message))))
    for word in sorted(odd, key=lambda word: not word.startswith("-")):
        name = word.partition("=")[0]
        if not name.startswith("-"):
            parser.error(f"one argument too many: {word}")
        flags = {option.name: option.flag for option in _options(verb) if not option.positional}
        near = nearest(name.strip("-").replace("-", "_"), flags)
        few = f"; the options are {', '.join(flags.values())}" if len(flags) <= FEW else ""
        parser.error(f"unknown option {name}{f'; perhaps you meant {flags[near]}' if near else few}")
    return verb(**{name: _tuples(value) for name, value in vars(values).items()})


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
        usage=" ".join(["%(prog)s [OPTIONS]", *(option.metavar for option in positional)]),
        description="\n\n".join(textwrap.fill(text, width) for text in paragraphs),
        epilog=f"{program} --help-all shows every option." if common else None,
        formatter_class=functools.partial(argparse.RawDescriptionHelpFormatter, max_help_position=INDENT, width=width),
        argument_default=argparse.SUPPRESS,
        add_help=False,
        allow_abbrev=False,
        exit_on_error=False,
    )
    arguments = parser.add_argument_group()
    for option in positional:
        arguments.add_argument(
            option.name, metavar=option.metavar, help=option.text().replace("%", "%%"), **option.reads
        )
    for title, listed in groups.items():
        group = parser.add_argument_group(title)
        for option in listed:
            shown = option.text(short=bool(common)).replace("%", "%%")
            hidden = common is not None and option.name not in common
            group.add_argument(
                option.flag, dest=option.name, help=argparse.SUPPRESS if hidden else shown, **option.reads
            )
        if title == RUN:
            shows = "Show the common options, or every one." if name in COMMON else "Show this page."
            names = ("-h", "--help", "--help-all") if name in COMMON else ("-h", "--help")
            group.add_argument(*names, action="help", help=shows)
    return parser


def page_of(verb: type) -> tuple[list[Option], dict[str, list[Option]]]:
    """The positional arguments of a verb, and its options by group."""
    options = _options(verb)
    ungrouped = {option.name: option for option in options if not option.positional}
    grouped = {group: [ungrouped.pop(name) for name in names if name in ungrouped] for group, names in GROUPS.items()}
    grouped[RUN] = sorted(ungrouped.values(), key=lambda option: option.name == "json")
    positional = [option for option in options if option.positional]
    return positional, {group: listed for group, listed in grouped.items() if listed or group == RUN}


@functools.cache
def _options(verb: type) -> tuple[Option, ...]:
    hints, documented = get_type_hints(verb), _documented(verb)
    return tuple(_option(entry, hints[entry.name], documented.get(entry.name, "")) for entry in fields(verb))


def _option(declared: Field[Any], hint: Any, purpose: str) -> Option:
    """The option of a field, from its metadata, its type and the text below it."""
    kind = next((part for part in get_args(hint) if type(None) in get_args(hint)), hint)  # of one that may be None
    metavar = declared.metadata.get("metavar")
    if metavar is None:
        usual = type(get_args(kind)[0]) if get_origin(kind) is Literal else get_origin(kind) or kind
        metavar = {bool: "", int: "NUMBER", float: "NUMBER", tuple: "NAME [NAME ...]"}.get(usual, "NAME")
    positional, by_default = declared.metadata.get("positional", False), declared.metadata.get("default")
    default = f"(default: {by_default})" if by_default else ""
    if documented := re.fullmatch(r"(.*) (\(default: .*\))", purpose):
        purpose, default = documented.groups()
    elif not default and not positional and declared.default not in (None, False, ()):
        default = "(required)" if declared.default is MISSING else f"(default: {declared.default})"
    reads = {"action": "store_true"} if hint is bool else _reads(kind, declared.metadata.get("read"))
    if positional:
        reads |= {} if declared.default is MISSING else {"nargs": "?"}
    elif hint is not bool:
        first, _, others = metavar.partition(" [")
        shown = (first, others.removesuffix(" ...]")) if reads.get("nargs") == "+" else metavar
        reads |= {"required": declared.default is MISSING, "metavar": shown}
    return Option(
        name=declared.name, metavar=metavar, purpose=purpose, default=default, positional=positional, reads=reads
    )


def _reads(kind: Any, read: Callable[[str], Any] | None) -> dict[str, Any]:
    """How argparse reads values of this kind."""
    if read is not None:
        return {"type": _converted(read)}
    if get_origin(kind) is Literal:
        allowed = {str(value): value for value in get_args(kind)}
        return {"type": _converted(allowed.__getitem__, " or ".join(allowed))}
    if get_origin(kind) is tuple:
        inner, *more = get_args(kind)
        if more != [...]:
            return {"type": _converted(_pair, "two integers separated by a comma")}
        return {"nargs": "+"} | ({"action": "append"} if get_origin(inner) is tuple else _reads(inner, None))
    return {"type": _converted(*_KINDS[kind])} if kind in _KINDS else {}


def _pair(text: str) -> tuple[int, int]:
    low, high = (int(part) for part in text.split(","))
    return low, high


def _converted(read: Callable[[str], Any], expected: str = "") -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        try:
            return read(text)
        except (ValueError, KeyError) as error:
            problem = f"must be {expected}, got {text!r}" if expected else str(error)
            raise argparse.ArgumentTypeError(problem) from None

    return convert


def _documented(verb: type) -> dict[str, str]:
    """The text below each field, from the most derived class that declares the field."""
    texts: dict[str, str] = {}
    for kind in reversed(verb.__mro__):
        texts |= _field_texts(kind.__module__).get(kind.__name__, {})
    return texts


@functools.cache
def _field_texts(name: str) -> dict[str, dict[str, str]]:
    """For each class of a module, the text below each of its fields."""
    if name == "builtins":
        return {}
    classes = [node for node in ast.parse(inspect.getsource(sys.modules[name])).body if isinstance(node, ast.ClassDef)]
    return {node.name: dict(_texts(node)) for node in classes}


def _texts(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for declaration, below in zip(node.body, node.body[1:], strict=False):
        match declaration, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, " ".join(text.split())
