"""What a verb prints: results on standard output, talk on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any


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


def figures(data: Mapping[str, Any], rows: Iterable[tuple[str, str]], *notes: str, json: bool) -> None:
    """The result as one JSON object, or for the reader: in two columns, with notes."""
    if json:
        as_json(data)
        return
    columns(rows)
    for line in notes:
        note(line)


def nothing_spent(would: str) -> str:
    """The note at the end of a dry run.

    >>> nothing_spent("search")
    'nothing was spent; without --dry-run this would search'
    """
    return f"nothing was spent; without --dry-run this would {would}"


def columns(rows: Iterable[tuple[str, str]]) -> None:
    """Two columns on standard output."""
    listed = list(rows)
    width = max(len(name) for name, _ in listed)
    for name, value in listed:
        print(f"{name:<{width}}  {value}")


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, texts: int = 0, apart: bool = False) -> None:
    """A table on standard output: figures to the right; the first `texts` columns and the last one to the left.

    Args:
        apart: between empty lines.
    """
    listed = [head, *rows]
    widths = [max(len(row[column]) for row in listed) for column in range(len(head) - 1)]
    if apart:
        result()
    sides = ["<"] * texts + [">"] * (len(widths) - texts)
    for *cells, remark in listed:
        aligned = [f"{text:{side}{width}}" for text, side, width in zip(cells, sides, widths, strict=True)]
        print("  ".join([*aligned, remark]).rstrip())
    if apart:
        result()


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
