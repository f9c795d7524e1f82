"""Printing: results go to standard output, messages to standard error.

`show` prints a result, as one JSON object or as text. Templates select the text from the same data.
"""

from __future__ import annotations

import json
import string
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

from sfumato.privacy.statements.display import rounded_up


class Facts(NamedTuple):
    """Two columns, labels and values.

    Args:
        data: the plain data.
        lines: a template for each label; None shows every value under its own name.
        more: further rows (label, text).
    """

    data: Mapping[str, Any]
    lines: Mapping[str, str] | None = None
    more: Sequence[tuple[str, str]] = ()


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
                columns(_lines(part))
            case Table():
                heads, templates = zip(
                    *(part.columns.items() if isinstance(part.columns, Mapping) else part.columns), strict=True
                )
                table(heads, [[fill(one, row) or "" for one in templates] for row in part.rows], texts=part.texts)


def fill(template: str, data: Mapping[str, Any]) -> str | None:
    """The template filled with the data; None if one of its fields is missing or None.

    The additional format spec `up` is for epsilon, which is never rounded down.

    >>> fill("{share:.1%} of {count:,}", {"share": 0.5, "count": 2000}), fill("{auc:.3f}", {"auc": None})
    ('50.0% of 2,000', None)
    >>> fill("{epsilon:up}", {"epsilon": 2.99961}), fill("{interval[0]}", {"interval": None})
    ('3.000', None)
    """
    try:
        return _FORMAT.vformat(template, (), data)
    except _MissingError:
        return None


def cell(name: str, value: Any) -> str:
    """The text of a value without a template. The name decides whether it is an epsilon.

    >>> cell("epsilon", 2.99961), cell("steps", 3), cell("rate", 0.12345678), cell("kept", [1, 2]), cell("flip", True)
    ('3.000', '3', '0.123457', '1, 2', 'True')
    """
    if isinstance(value, float):
        return rounded_up(value) if "epsilon" in name else f"{value:.6g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {cell(key, item)}" for key, item in value.items())
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


class _MissingError(Exception):
    pass


class _Format(string.Formatter):
    def get_field(self, field_name: str, args: Any, kwargs: Any) -> Any:
        known = kwargs.get(field_name.partition(".")[0].partition("[")[0])
        try:
            value, used = (None, "") if known is None else super().get_field(field_name, args, kwargs)
        except KeyError:
            value, used = None, ""
        if value is None:
            raise _MissingError
        return value, used

    def format_field(self, value: Any, format_spec: str) -> Any:
        return rounded_up(value) if format_spec == "up" else super().format_field(value, format_spec)


_FORMAT = _Format()


def _lines(facts: Facts) -> list[tuple[str, str]]:
    if facts.lines is None:
        known = {name: value for name, value in facts.data.items() if value is not None and value != []}
        named = {name: name.replace("_rdp", " by RDP").replace("_", " ") for name in known}
        return [*((named[name], cell(name, value)) for name, value in known.items()), *facts.more]
    found = ((label, fill(template, facts.data)) for label, template in facts.lines.items())
    return [*((label, line) for label, line in found if line is not None), *facts.more]


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
    width = max(len(name) for name, _ in listed)
    for name, value in listed:
        print(f"{name:<{width}}  {value}")


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, texts: int = 0) -> None:
    """Print a table on standard output. The first `texts` columns and the last one are left-aligned."""
    listed = [head, *rows]
    widths = [max(len(row[column]) for row in listed) for column in range(len(head) - 1)]
    sides = ["<"] * texts + [">"] * (len(widths) - texts)
    for *cells, remark in listed:
        aligned = [f"{text:{side}{width}}" for text, side, width in zip(cells, sides, widths, strict=True)]
        print("  ".join([*aligned, remark]).rstrip())


@contextmanager
def bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on standard error during the work. Without a terminal, print one line after five seconds."""
    from rich.console import Console
    from rich.progress import Progress

    from sfumato.observers.progress import line_if_slow

    console = Console(stderr=True)
    with (
        nullcontext() if console.is_terminal else line_if_slow(what),
        Progress(console=console, transient=True, disable=not console.is_terminal) as bars,
    ):
        task = bars.add_task(what, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)
