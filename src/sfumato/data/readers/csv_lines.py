"""Lines of CSV tables, compressed or not, and the facts that a line gives about its record."""

from __future__ import annotations

import csv
import gzip
import itertools
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from sfumato._checks import SfumatoError
from sfumato._files import path_errors, refuse_special
from sfumato.data import paths
from sfumato.data.classes import Spellings, part_by_name, refuse_unwritable, to_nfc
from sfumato.data.declared import Order
from sfumato.data.record_users import record_in_test, refuse_several
from sfumato.data.subsets import MARK

_QUOTED = re.compile('"[^"]*"')
FACTS = ("label", "user", "group", "split")
"""Optional columns next to a record's path or text."""

SUBGROUP = "group for figures"
"""The name under which the column of `groups_from` is read, besides its own."""

LONGEST_LINE = 1 << 24
"""Characters. A longer line is refused before it is read completely."""


def first_of(table: Path) -> list[str]:
    """The fields of the first line, usually the columns' names."""
    with _reading(table) as stream:
        header, lines = _peek(stream)
        return [to_nfc(name.strip()) for name in next(csv.reader(lines, strict=True, delimiter=separator(header)), [])]


def rows_of(table: Path, columns: Sequence[str] | None = None) -> Iterator[tuple[int, dict[str, str]]]:
    """Yields the number and the fields by column of each line.

    Args:
        columns: names of the columns, if the first line does not give them.
    """
    with _reading(table) as stream:
        header, lines = _peek(stream)
        reader = csv.DictReader(lines, fieldnames=columns, strict=True, delimiter=separator(header))
        if columns is None:
            reader.fieldnames = [to_nfc(name.strip()) for name in reader.fieldnames or ()]
        for row in reader:
            if any(field.strip() for field in row.pop(None, [])):
                raise SfumatoError(
                    f"line {reader.line_num} of {str(table)!r} has more fields than the first line",
                    "put texts with commas in quotation marks",
                )
            yield reader.line_num, row


Lines = Callable[[], Iterator[tuple[int, dict[str, str]]]]
"""Returns a fresh iterator over line numbers and fields by column."""


def renamed(
    table: Path, first: Sequence[str], lines_of: Lines, given: Mapping[str, str | None]
) -> tuple[Sequence[str], Lines]:
    """The first line and all others, with the declared columns renamed.

    Args:
        given: the declared column of each of path, label and user; None for none.
    """
    wanted: dict[str, str] = {}
    for name, own in given.items():
        if own in wanted:
            raise SfumatoError(
                f"`{wanted[own]}_column` and `{name}_column` are both {own!r}", "name a column of its own for each"
            )
        if own is not None:
            wanted[own] = name
    for own, name in wanted.items():
        if own not in first:
            shown = repr(",".join(first)[:100])
            raise SfumatoError(
                f"table {str(table)!r} has no column {own!r} in its first line, which holds {shown}",
                f"correct `{name}_column`",
            )
    if not wanted:
        return first, lines_of
    names = {column: wanted.get(column, column if column not in wanted.values() else "") for column in first}
    names[SUBGROUP] = SUBGROUP

    def lines() -> Iterator[tuple[int, dict[str, str]]]:
        for line, row in lines_of():
            yield line, {names[column]: field for column, field in row.items() if names[column]}

    return [name for column in first if (name := names[column])], lines


def with_subgroups(table: Path, first: Sequence[str], lines_of: Lines, column: str | None) -> Lines:
    """All lines, with a copy of the column of `groups_from`, if declared, under the name `SUBGROUP`."""
    if column is None:
        return lines_of
    if column not in first:
        shown = repr(",".join(first)[:100])
        raise SfumatoError(
            f"table {str(table)!r} has no column {column!r} in its first line, which holds {shown}",
            "correct `groups_from`",
        )

    def lines() -> Iterator[tuple[int, dict[str, str]]]:
        for line, row in lines_of():
            yield line, row | {SUBGROUP: row[column]}

    return lines


@contextmanager
def _reading(table: Path) -> Iterator[TextIO]:
    """Opens the table as text. Errors name it."""
    where = f"table {str(table)!r}"
    with path_errors(where, "correct the path after csv:", "give the .csv file, or use folder:"):
        try:
            refuse_special(paths.status(table), where)
            how: dict[str, Any] = {"mode": "rt", "encoding": "utf-8-sig", "newline": ""}
            with gzip.open(table, **how) if table.suffix == ".gz" else table.open(**how) as stream:
                yield stream
        except (gzip.BadGzipFile, EOFError, zlib.error):
            raise SfumatoError(
                f"{where} is not a complete gzip file", "compress it again, or give it as .csv"
            ) from None
        except (UnicodeDecodeError, csv.Error) as problem:
            reason = "it is not UTF-8 text" if isinstance(problem, UnicodeDecodeError) else problem
            what = f"{where} cannot be read as comma-separated text ({reason})"
            raise SfumatoError(what, "save it as CSV in UTF-8") from None


def _lines(stream: TextIO) -> Iterator[str]:
    """Yields the lines of a file. Refuses lines that could fill memory."""
    while line := stream.readline(LONGEST_LINE):
        if len(line) == LONGEST_LINE:
            raise csv.Error(f"one of its lines has {LONGEST_LINE:,} characters or more")
        yield line


def _peek(stream: TextIO) -> tuple[str, Iterator[str]]:
    """The first line, and all of them."""
    lines = _lines(stream)
    header = next(lines, "")
    return header, itertools.chain([header] if header else [], lines)


def separator(header: str) -> str:
    """The field separator of a table with this first line: comma, semicolon or tab, whichever is most frequent outside
    quotation marks.

    >>> separator("path,label"), separator('path;"label, own"'), separator("path\\tlabel"), separator("path")
    (',', ';', '\\t', ',')
    """
    bare = _QUOTED.sub("", header)
    return max(",;\t", key=bare.count)


def check_columns(
    found: Sequence[str], wanted: Sequence[str], where: str, *, example: str, labels: Sequence[str] | None = None
) -> None:
    """Refuses a first line that lacks a column, or has a needed column twice.

    Args:
        found: names in the first line.
        wanted: required columns, besides the label.
        example: example of a first line.
        labels: columns of 0 and 1, if records have several labels instead of one; empty if they have none.
    """
    for column in labels or ():
        if column in (*wanted, *FACTS, MARK):
            raise SfumatoError(
                f"`label_columns` names {column!r}, a column that says something else", "rename the column of the label"
            )
    for column in (*wanted, *(["label"] if labels is None else labels)):
        if column not in found:
            shown = repr(",".join(found)[:100])
            called = {"path": "give its name as `path_column`, or ", "label": "give its name as `label_column`, or "}
            raise SfumatoError(
                f"{where} has no column {column!r} in its first line, which has {shown}",
                f"{'' if labels else called.get(column, '')}begin the table with a line such as {example}",
            )
    if "group" in found and "user" not in found:
        raise SfumatoError(
            f"{where} has a column 'group' but no column 'user'", "add a column user, or rename the column"
        )
    for column in (*wanted, *FACTS, *(labels or ())):
        if list(found).count(column) > 1:
            raise SfumatoError(f"{where} has two columns {column!r}", "take one of them out")


def facts_of(
    row: dict[str, str], wanted: Sequence[str], table: Path, line: int, labels: Sequence[str] | None = None
) -> dict[str, Any]:
    """The facts of a line: label, part, user, group, group for figures, and whether its list was filtered.

    Args:
        wanted: the record's own columns. They must not be empty, like the facts.
        labels: as for `check_columns`.
    """
    where = f"line {line} of {str(table)!r}"
    for column in (*wanted, *(FACTS if labels is None else FACTS[1:]), SUBGROUP):
        if column in row and not (row[column] or "").strip():
            raise SfumatoError(f"{where} has no {column}", f"fill in its {column}, or remove the line")
    found: dict[str, Any] = {name: (row[name] or "").strip() for name in FACTS if name in row}
    if "user" in found:
        refuse_several(found["user"], where)
    part = found_split = found.pop("split", None)
    if part is not None:
        part = part_by_name(part)
        if part is None:
            raise SfumatoError(f"{where} has the split {found_split!r}", "write train, test or validation")
    if SUBGROUP in row:
        found["subgroup"] = row[SUBGROUP].strip()
    if labels is not None:
        found["label"] = _zeros_and_ones(row, labels, table)
    return {**found, "part": part, "filtered": MARK in row}


def _zeros_and_ones(row: dict[str, str], labels: Sequence[str], table: Path) -> tuple[int, ...]:
    """Whether each label is true. Errors name the column, but no line or value."""
    values = [_BINARY.get((row[column] or "").strip()) for column in labels]
    for column, value in zip(labels, values, strict=True):
        if value is None:
            raise SfumatoError(
                f"column {column!r} of {str(table)!r} holds something other than 0 and 1",
                "write 1 for true and 0 for false; decide yourself about empty or uncertain values",
            )
    return tuple(value for value in values if value is not None)


_BINARY = {"0": 0, "1": 1, "0.0": 0, "1.0": 1}
"""Values of a label that is false or true. Tables of floating-point numbers write 1.0."""


def facts_to_nfc(found: dict[str, Any], names: Spellings) -> dict[str, Any]:
    """The result of `facts_of` with names of class, user and group in composed form."""
    rules = {"label": lambda name: names.normalise("class", name), "user": lambda name: names.normalise("user", name)}
    rules["group"] = rules["subgroup"] = lambda name: names.normalise("group", name)
    return found | {fact: rule(found[fact]) for fact, rule in rules.items() if fact in found}


@dataclass(frozen=True, kw_only=True)
class RecordFacts:
    """The facts of one record.

    Args:
        label: name of the class; or 0 or 1 for each of the source's labels.
        part: "train", "test", or None to let the keyed hash decide.
        user: the user, if known.
        group: the public group of the user, if known.
        subgroup: the group for figures, if declared.
        filtered: whether the record comes from a list that was filtered by looking at private data.
    """

    label: str | tuple[int, ...]
    part: str | None = None
    user: str | None = None
    group: str | None = None
    subgroup: str | None = None
    filtered: bool = False

    def in_test(self, content: bytes, order: Order) -> bool:
        """Whether the record belongs to the test part: as given, else by a keyed hash (`record_in_test`)."""
        if self.part is not None:
            return self.part == "test"
        return record_in_test(order.owner_key, content, self.user, order.declared.loading.share)


def refuse_unwritable_names(listed: Sequence[RecordFacts]) -> None:
    """Refuses names of classes and groups that cannot be displayed."""
    for what in ("label", "group", "subgroup"):
        for name in sorted({name for one in listed if isinstance(name := getattr(one, what), str)}):
            refuse_unwritable(name, "class name" if what == "label" else what)


def reading_of(listed: Sequence[RecordFacts], order: Order) -> dict[str, Any]:
    """Fields of `Reading`."""
    labels = order.declared.labels
    return {
        "classes_listed": (labels.classes or labels.label_columns) is not None,
        "has_own_split": listed[0].part is not None,
        "filtered": any(one.filtered for one in listed),
    }


def columns_of(
    listed: Sequence[RecordFacts], classes: tuple[str, ...], labels: np.ndarray | None = None
) -> dict[str, Any]:
    """Labels, users and groups (also for figures) of the records of one part, as fields of `Records`.

    Args:
        listed: records. If one has a user or group, all do.
        classes: the class list.
        labels: the labels, if lines do not name them.
    """
    if labels is None:
        numbers = {name: number for number, name in enumerate(classes)}
        labels = np.array([numbers[str(one.label)] for one in listed], dtype=np.int64)
    return {
        "labels": labels,
        "users": _names([one.user for one in listed]),
        "groups": _names([one.group for one in listed]),
        "subgroups": _names([one.subgroup for one in listed]),
    }


def _names(names: Sequence[str | None]) -> np.ndarray | None:
    return None if None in names else np.array(names, dtype=np.str_)
