"""Printing: results go to standard output, messages to standard error.

`show` prints a result, as one JSON object or as text made from the same data.
"""

from __future__ import annotations

import json
import string
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

LONGEST = 20
"""The longest list that is printed as text. --json holds all of them."""


class Facts(NamedTuple):
    """Plain data, or pairs of texts, in two columns. Missing values, and lists of figures for a plot, are left out."""

    data: Mapping[str, Any] | Sequence[tuple[str, str]]


class Table(NamedTuple):
    """A table: plain data for each row, a heading and a template for each column.

    The first `texts` columns and the last one are aligned to the left, all others to the right.
    """

    rows: Iterable[Mapping[str, Any]]
    columns: Mapping[str, str] | Sequence[tuple[str, str]]
    texts: int = 0


class Note(str):
    """A message for standard error, not part of the result."""


def show(data: Mapping[str, Any], *parts: str | Facts | Table | None, json: bool) -> None:
    """Print a result as one JSON object, or its parts as text.

    Args:
        data: the result as plain data.
        parts: lines, facts, tables and notes, in this order; None is skipped.
        json: whether to print the JSON object.
    """
    if json:
        print_json(data)
        return
    for part in parts:
        match part:
            case None:
                pass
            case Note():
                note(part)
            case str():
                result(part)
            case Facts():
                columns(_rows(part.data))
            case Table():
                heads, templates = zip(
                    *(part.columns.items() if isinstance(part.columns, Mapping) else part.columns), strict=True
                )
                table(
                    heads,
                    [[fill(template, row) or "" for template in templates] for row in part.rows],
                    texts=part.texts,
                )


def fill(template: str, data: Mapping[str, Any]) -> str | None:
    """The template filled with the data; None if one of its fields is missing or None.

    The additional format spec `up` is for epsilon, which is never rounded down.

    >>> fill("{share:.1%} of {count:,}", {"share": 0.5, "count": 2000}), fill("{auc:.3f}", {"auc": None})
    ('50.0% of 2,000', None)
    >>> fill("{epsilon:up}", {"epsilon": 2.99961}), fill("{interval[0]}", {"interval": None})
    ('3.000', None)
    """
    try:
        return _Format().vformat(template, (), data)
    except (_MissingError, KeyError):
        return None


def cell(name: str, value: Any) -> str:
    """The text of a value. The name decides whether it is an epsilon.

    >>> cell("epsilon", 2.99961), cell("steps", 3), cell("rate", 0.12345678), cell("kept", [1, 2]), cell("flip", True)
    ('3.000', '3', '0.123457', '1, 2', 'True')
    >>> cell("auc", [0.9, 0.85, 0.94])
    '0.9000 (0.8500 to 0.9400)'
    """
    if isinstance(value, float):
        return _rounded_up(value) if "epsilon" in name else f"{value:.6g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {cell(key, item)}" for key, item in value.items() if item is not None)
    if isinstance(value, (list, tuple)):
        if len(value) == 3 and all(isinstance(end, float) for end in value):  # an estimate and its interval
            return "{:.4f} ({:.4f} to {:.4f})".format(*value)
        return ", ".join(cell(name, item) for item in value)
    return str(value)


def _rows(data: Mapping[str, Any] | Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Plain data as rows of text. The entries of a mapping, or of a list of mappings, have rows of their own."""
    if not isinstance(data, Mapping):
        yield from data
        return
    for name, value in data.items():
        label = name.replace("_rdp", " by RDP").replace("_", " ")
        if _is_left_out(value):
            continue
        if isinstance(value, Mapping):
            inner = list(value.items())
        elif isinstance(value, (list, tuple)) and isinstance(value[0], Mapping):
            inner = [(first, dict(rest)) for (_, first), *rest in (entry.items() for entry in value)]
        else:
            yield label, cell(name, value)
            continue
        yield label, ""
        yield from ((f"  {key}", cell(key, item)) for key, item in inner if not _is_left_out(item))


def _is_left_out(value: Any) -> bool:
    if not isinstance(value, (list, tuple)):
        return value is None
    return not value or (len(value) > LONGEST and not isinstance(value[0], Mapping))


class _MissingError(Exception):
    pass


class _Format(string.Formatter):
    def get_field(self, field_name: str, args: Any, kwargs: Any) -> Any:
        root = field_name.partition(".")[0].partition("[")[0]
        if kwargs.get(root) is None or (field := super().get_field(field_name, args, kwargs))[0] is None:
            raise _MissingError
        return field

    def format_field(self, value: Any, format_spec: str) -> Any:
        return _rounded_up(value) if format_spec == "up" else super().format_field(value, format_spec)


def _rounded_up(value: float) -> str:
    from sfumato.privacy.statements.display import rounded_up

    return rounded_up(value)


def note(line: str = "") -> None:
    """Print a message on standard error."""
    print(line, file=sys.stderr)


def result(line: str = "") -> None:
    """Print a line of the result."""
    print(line)


def print_json(data: Mapping[str, Any]) -> None:
    """Print the result as one JSON object on one line."""
    unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    print(json.dumps(data, ensure_ascii=not unicode, allow_nan=False))


def dry_run_note(would: str) -> Note:
    """The note at the end of a dry run.

    >>> dry_run_note("search")
    'dry run: no privacy was spent; without --dry-run this would search'
    """
    return Note(f"dry run: no privacy was spent; without --dry-run this would {would}")


def columns(rows: Iterable[tuple[str, str]]) -> None:
    """Print two columns on standard output."""
    listed = list(rows)
    width = max((len(name) for name, _ in listed), default=0)
    for name, value in listed:
        print(f"{name:<{width}}  {value}".rstrip())


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, texts: int = 0) -> None:
    """Print a table on standard output. The first `texts` columns and the last one are left-aligned."""
    listed = [head, *rows]
    widths = [max(len(row[column]) for row in listed) for column in range(len(head) - 1)]
    sides = ["<"] * texts + [">"] * (len(widths) - texts)
    for *cells, remark in listed:
        aligned = [f"{text:{side}{width}}" for text, side, width in zip(cells, sides, widths, strict=True)]
        print("  ".join([*aligned, remark]).rstrip())


@contextmanager
def bar(work: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on standard error during the work. Without a terminal, print one line after five seconds."""
    from rich.console import Console
    from rich.progress import Progress

    from sfumato.observers.progress import line_if_slow

    console = Console(stderr=True)
    with (
        nullcontext() if console.is_terminal else line_if_slow(work),
        Progress(console=console, transient=True, disable=not console.is_terminal) as bars,
    ):
        task = bars.add_task(work, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)
