"""The lines of a table in a CSV file, compressed or not, and what a line may say besides its record."""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from sfumato._checks import SfumatoError
from sfumato._files import refuse_special
from sfumato.data import paths
from sfumato.data.clock import WRITTEN, TimeStamp, time_stamp
from sfumato.data.subsets.filtered import MARK

OTHER_NAME = "a column that says something else needs another name"
FACTS = ("label", "user", "group", "time", "split")
"""Columns that may stand beside a record's path or text."""

LONGEST_LINE = 1 << 24
"""Characters: a longer line is refused before it is read to its end."""


def first_of(table: Path) -> list[str]:
    """The fields of the first line: columns' names, where there are any."""
    with _reading(table) as stream:
        return next(csv.reader(_lines(stream), strict=True), [])


def rows_of(table: Path, columns: Sequence[str] | None = None) -> Iterator[tuple[int, dict[str, str]]]:
    """Line number and fields by column, of one line after the other.

    Args:
        columns: their names, where the first line is not what says them.
    """
    with _reading(table) as stream:
        reader = csv.DictReader(_lines(stream), fieldnames=columns, strict=True)
        for row in reader:
            if any(field.strip() for field in row.pop(None, [])):
                raise SfumatoError(
                    f"line {reader.line_num} of {str(table)!r} has more fields than the first line",
                    "put texts that hold commas in quotation marks",
                )
            yield reader.line_num, row


@contextmanager
def _reading(table: Path) -> Iterator[TextIO]:
    """The table as text; what goes wrong meanwhile is refused by name."""
    where = f"table {str(table)!r}"
    try:
        refuse_special(paths.status(table), where)
        how: dict[str, Any] = {"mode": "rt", "encoding": "utf-8-sig", "newline": ""}
        with gzip.open(table, **how) if table.suffix == ".gz" else table.open(**how) as stream:
            yield stream
    except SfumatoError:
        raise
    except (FileNotFoundError, NotADirectoryError):
        raise SfumatoError(f"{where} does not exist", "correct the path after csv:") from None
    except IsADirectoryError:
        raise SfumatoError(f"{where} is a folder", "give the .csv file, or use folder:") from None
    except PermissionError:
        raise SfumatoError(f"{where} may not be read", "give yourself permission to read it") from None
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise SfumatoError(f"{where} is no whole gzip file", "compress it again, or give it as .csv") from None
    except OSError as problem:
        reason = problem.strerror or problem
        raise SfumatoError(f"{where} cannot be read ({reason})", "check the file and its disk") from None
    except (UnicodeDecodeError, csv.Error) as problem:
        reason = "it is not UTF-8 text" if isinstance(problem, UnicodeDecodeError) else problem
        raise SfumatoError(
            f"{where} cannot be read as comma-separated text ({reason})", "save it as CSV in UTF-8"
        ) from None


def _lines(stream: TextIO) -> Iterator[str]:
    """The lines of a file, none of which may fill the memory."""
    while line := stream.readline(LONGEST_LINE):
        if len(line) == LONGEST_LINE:
            raise csv.Error(f"one of its lines has {LONGEST_LINE:,} characters or more")
        yield line


def check_columns(
    found: Sequence[str], wanted: Sequence[str], where: str, *, example: str, labels: Sequence[str] | None = None
) -> None:
    """Refuse a first line that lacks a column, or has one of those that are looked at twice.

    Args:
        found: the names in the first line.
        wanted: the record's own columns; a label is wanted beside them.
        example: of a first line.
        labels: the columns of labels that don't exclude each other, where the record has such in place of a label.
    """
    for column in labels or ():
        if column in (*wanted, *FACTS, MARK):
            raise SfumatoError(
                f"`label_columns` names {column!r}, a column that says something else", "rename the column of the label"
            )
    for column in (*wanted, *(labels or ["label"])):
        if column not in found:
            shown = repr(",".join(found)[:100])
            raise SfumatoError(
                f"{where} has no column {column!r} in its first line, which holds {shown}",
                f"begin the table with a line such as {example}",
            )
    if "group" in found and "user" not in found:
        raise SfumatoError(
            f"{where} has a column 'group' and no column 'user'", "add whose image each one is, or rename the column"
        )
    for column in (*wanted, *FACTS, *(labels or ())):
        if list(found).count(column) > 1:
            raise SfumatoError(f"{where} has two columns {column!r}", "take one of them out")


def facts_of(
    row: dict[str, str], wanted: Sequence[str], table: Path, line: int, labels: Sequence[str] | None = None
) -> dict[str, Any]:
    """What a line says besides its record: label, part, user, group, time, and whether its list was filtered.

    Args:
        wanted: the record's own columns, which must be filled in like those that say these things.
        labels: as for `check_columns`.
    """
    for column in (*wanted, *(FACTS if labels is None else FACTS[1:])):
        if column in row and not (row[column] or "").strip():
            other = f"; {OTHER_NAME}" if column == "time" else ""
            raise SfumatoError(
                f"line {line} of {str(table)!r} has no {column}", f"fill in its {column}, or take the line out{other}"
            )
    part = row["split"].strip() if "split" in row else None
    if part not in ("train", "test", None):
        raise SfumatoError(f"line {line} of {str(table)!r} has the split {part!r}", "write train or test")
    user, group = (row[column].strip() if column in row else None for column in ("user", "group"))
    time = _time(row["time"].strip(), table, line) if "time" in row else None
    return {
        "label": row["label"].strip() if labels is None else _zeros_and_ones(row, labels, table),
        "part": part,
        "user": user,
        "group": group,
        "time": time,
        "filtered": MARK in row,
    }


def _zeros_and_ones(row: dict[str, str], labels: Sequence[str], table: Path) -> tuple[int, ...]:
    """Which of the labels are true. A refusal names the column, and no line or value of it."""
    values = [(row[column] or "").strip() for column in labels]
    for column, value in zip(labels, values, strict=True):
        if value not in ("0", "1"):
            raise SfumatoError(
                f"column {column!r} of {str(table)!r} holds something else than 0 and 1",
                "write 1 where it is true and 0 where it is not; what is empty or uncertain is yours to decide",
            )
    return tuple(int(value) for value in values)


def refuse_other_time(time: TimeStamp | None, first: TimeStamp | None, where: str) -> None:
    """Refuse a time that is a number where others are dates, or the other way round."""
    if isinstance(time, float) != isinstance(first, float):
        raise SfumatoError(
            f"{where} has a time of another kind than the lines before it", f"give dates or numbers; {OTHER_NAME}"
        )


def _time(text: str, table: Path, line: int) -> TimeStamp:
    try:
        return time_stamp(text)
    except ValueError:
        raise SfumatoError(
            f"line {line} of {str(table)!r} has a time that is neither a date by ISO 8601 nor a finite number",
            f"write one {WRITTEN}; {OTHER_NAME}",
        ) from None
