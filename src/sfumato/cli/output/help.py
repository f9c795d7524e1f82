"""What `sfumato VERB --help` shows: the verb's options in groups, the budget first."""

from __future__ import annotations

import ast
import functools
import inspect
import shutil
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, fields
from typing import Any, NamedTuple, get_type_hints

import tyro

from sfumato.cli.registry import name_of

GROUPS: dict[str, tuple[str, ...]] = {
    "budget": (
        *("epsilon", "delta", "noise_multiplier", "batch_size", "steps", "max_norm", "quantile", "report_epsilon"),
        *("unit", "per_user", "drawn", "adjacency", "participation", "mechanism", "order", "groups", "largest_batch"),
        *("bands", "buffers", "steps_per_tree", "complete_trees", "start", "period"),
        *("drift", "drift_shape", "drift_groups", "drift_size"),
    ),
    "data": (
        *("source", "examples", "users", "classes", "label_columns", "size", "channels", "bit_depth", "window"),
        *("test_fraction",),
        *("skip_unreadable", "user_from", "public", "private", "not_private", "root", "download"),
        *("text_column", "length", "vocabulary", "words", "part", "label_sets"),
    ),
    "model": (
        *("model", "pretrained", "pretrained_weights", "head", "head_deviation", "head_bias", "head_scale"),
        *("trainable", "dimension", "normalisation", "public_data", "public_examples", "backbone", "weights"),
        *("resolution", "resize", "crop", "dtype"),
    ),
    "training": (
        *("method", "optimizer", "learning_rate", "pretrained_rate", "momentum", "weight_decay", "schedule", "warmup"),
        *("loss", "class_prevalence", "views", "shift", "flip", "zoom", "crop_area"),
        *("ema", "ema_form", "aggregate", "aggregate_from"),
        *("aggregate_last", "aggregate_restart", "clients", "grouping", "client_rate", "client_momentum"),
        *("client_epochs", "client_batch_size", "client_examples", "client_loss", "shuffle_buffer"),
        *("reconstruction_steps", "calibrate_on", "epochs", "deviations", "learning_rates", "margin", "share", "runs"),
    ),
    "search": (
        *("vary", "one_at_a_time", "search", "candidates", "shape", "score_noise", "validation", "score_on"),
        *("processes", "last", "decay"),
    ),
}
"""The groups in their order, and the options of each in theirs. Those of no group here are the run's."""

OTHERS = "run"
INDENT, NARROWEST, WIDEST = 24, 60, 110


@dataclass(frozen=True, kw_only=True)
class Spelt:
    """How an option is written and what it is for.

    Args:
        name: the field's name.
        usage: such as `--batch-size B`.
        words: what it is for, and what stands in for it where it is left out.
    """

    name: str
    usage: str
    words: str


class Page(NamedTuple):
    """The positional arguments of a verb, and its options by group."""

    positional: list[Spelt]
    options: dict[str, list[Spelt]]


def shown(verb: type) -> str:
    """The whole page, as wide as the terminal."""
    width = min(max(shutil.get_terminal_size().columns - 2, NARROWEST), WIDEST)
    page = paged(verb)
    usage = " ".join([f"usage: sfumato {name_of(verb)} [OPTIONS]", *(one.usage for one in page.positional)])
    blocks = [usage, *(textwrap.fill(text, width) for text in _paragraphs(verb.__doc__ or ""))]
    if page.positional:
        blocks.append("\n".join(line for one in page.positional for line in _lines(one, width)))
    for group, options in page.options.items():
        blocks.append("\n".join([f"{group}:", *(line for one in options for line in _lines(one, width))]))
    return "\n\n".join(blocks)


def paged(verb: type) -> Page:
    """What there is to show of a verb."""
    hints, documented = get_type_hints(verb, include_extras=True), _documented(verb)
    by_name = {one.name: _spelt(one, hints[one.name], documented.get(one.name, "")) for one in fields(verb)}
    positional = [one for one in by_name.values() if not one.usage.startswith("--")]
    left = [name for name, one in by_name.items() if one not in positional]
    grouped = {group: [name for name in names if name in left] for group, names in GROUPS.items()}
    grouped[OTHERS] = [name for name in left if not any(name in names for names in grouped.values())]
    options = {group: [by_name[name] for name in names] for group, names in grouped.items() if names}
    options[OTHERS].append(Spelt(name="help", usage="-h, --help", words="Show this page."))
    return Page(positional, options)


def _spelt(one: Field[Any], hint: Any, words: str) -> Spelt:
    extras = getattr(hint, "__metadata__", ())
    metavar = next((extra.metavar for extra in extras if getattr(extra, "metavar", None)), _metavar(one))
    behaviour = next((extra.help_behavior_hint for extra in extras if getattr(extra, "help_behavior_hint", "")), "")
    if not behaviour and one.default not in (None, False, ()):
        behaviour = "(required)" if one.default is MISSING else f"(default: {one.default})"
    if tyro.conf.Positional in extras:
        return Spelt(name=one.name, usage=metavar, words=words)
    usage = f"--{one.name.replace('_', '-')} {metavar}".rstrip()
    return Spelt(name=one.name, usage=usage, words=f"{words} {behaviour}".rstrip())


def _metavar(one: Field[Any]) -> str:
    """How a value is spelt of which nothing was said: a switch has none."""
    kinds = {bool: "", int: "NUMBER", float: "NUMBER"}
    return kinds.get(type(one.default), "NAME")


def _lines(one: Spelt, width: int) -> Iterator[str]:
    first = f"  {one.usage}"
    told = textwrap.wrap(one.words, width - INDENT, break_long_words=False, break_on_hyphens=False)
    if len(first) + 2 > INDENT:
        yield first
    else:
        yield f"{first:<{INDENT}}{told.pop(0)}"
    yield from (f"{'':<{INDENT}}{line}" for line in told)


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
