"""What a verb prints: results on standard output, talk on standard error.

`show` prints a result: the plain data as one JSON object, or what a few declarations pick from these data.
"""

from __future__ import annotations

import json
import string
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from sfumato.privacy.statements.presented import rounded_up


class Facts(NamedTuple):
    """Two columns: a label and a template for each line, or every figure by its own name; and lines that are words."""

    data: Mapping[str, Any]
    lines: Mapping[str, str] | None = None
    more: Sequence[tuple[str, str]] = ()


class Table(NamedTuple):
    """A table: a row of plain data for each line, and a heading and a template for each column.

    The first `texts` columns and the last one are aligned to the left, all others to the right.
    """

    rows: Iterable[Mapping[str, Any]]
    columns: Mapping[str, str] | Sequence[tuple[str, str]]
    texts: int = 0


class Note(str):
    """A line for the reader, not for a pipe."""


def show(data: Mapping[str, Any], *parts: str | Facts | Table | None, json: bool) -> None:
    """The result as one JSON object, or its parts for the reader, in their order.

    Args:
        data: the result as plain data.
        parts: lines, facts, tables and notes; None is left out.
        json: which of both.
    """
    if json:
        as_json(data)
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
                table(heads, [[filled(one, row) or "" for one in templates] for row in part.rows], texts=part.texts)


def filled(template: str, data: Mapping[str, Any]) -> str | None:
    """The template with what the data hold, or None where a field of it is missing or None.

    Besides Python's format specs there is `up`, an epsilon that is never rounded down.

    >>> filled("{share:.1%} of {count:,}", {"share": 0.5, "count": 2000}), filled("{auc:.3f}", {"auc": None})
    ('50.0% of 2,000', None)
    >>> filled("{epsilon:up}", {"epsilon": 2.99961}), filled("{interval[0]}", {"interval": None})
    ('3.000', None)
    """
    try:
        return _FORMAT.vformat(template, (), data)
    except _MissingError:
        return None


def cell(name: str, value: Any) -> str:
    """A figure as it is shown where no template says how.

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
    found = ((label, filled(template, facts.data)) for label, template in facts.lines.items())
    return [*((label, line) for label, line in found if line is not None), *facts.more]


def note(line: str = "") -> None:
    """A line for the reader, not for a pipe."""
    print(line, file=sys.stderr)


def result(line: str = "") -> None:
    """A line of the result."""
    print(line)


def paragraph(*lines: str) -> None:
    """Lines of the result, and an empty one."""
    print(*lines, "", sep="\n")


def as_json(data: Mapping[str, Any]) -> None:
    """The result as one JSON object on one line."""
    unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    print(json.dumps(data, ensure_ascii=not unicode, allow_nan=False))


def nothing_spent(would: str) -> Note:
    """The note at the end of a dry run.

    >>> nothing_spent("search")
    'nothing was spent; without --dry-run this would search'
    """
    return Note(f"nothing was spent; without --dry-run this would {would}")


def columns(rows: Iterable[tuple[str, str]]) -> None:
    """Two columns on standard output."""
    listed = list(rows)
    width = max(len(name) for name, _ in listed)
    for name, value in listed:
        print(f"{name:<{width}}  {value}")


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, texts: int = 0) -> None:
    """A table on standard output: figures to the right; the first `texts` columns and the last one to the left."""
    listed = [head, *rows]
    widths = [max(len(row[column]) for row in listed) for column in range(len(head) - 1)]
    sides = ["<"] * texts + [">"] * (len(widths) - texts)
    for *cells, remark in listed:
        aligned = [f"{text:{side}{width}}" for text, side, width in zip(cells, sides, widths, strict=True)]
        print("  ".join([*aligned, remark]).rstrip())


SLOW_SECONDS = 2.0


@contextmanager
def bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on standard error, on a terminal and while the work lasts; elsewhere one line, after two
    seconds."""
    from threading import Timer

    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    line = Timer(SLOW_SECONDS, lambda: console.is_terminal or print(f"{what} ...", file=sys.stderr, flush=True))
    line.daemon = True
    line.start()
    try:
        with Progress(console=console, transient=True, disable=not console.is_terminal) as bars:
            task = bars.add_task(what, total=None)
            yield lambda done, total: bars.update(task, completed=done, total=total)
    finally:
        line.cancel()
