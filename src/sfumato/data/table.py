"""csv:PATH - a table of image files with the columns path and label, and optionally user, group, time and split."""

from __future__ import annotations

import csv
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import TextIO

from sfumato._checks import SfumatoError
from sfumato._files import refuse_special
from sfumato.data import paths
from sfumato.data.classes import UnknownClassError
from sfumato.data.clock import WRITTEN, TimeStamp, time_stamp
from sfumato.data.files import Entry, load_files
from sfumato.data.filtered import MARK
from sfumato.data.parts import Parts
from sfumato.data.records import Declared

OTHER_NAME = "a column that says something else needs another name"
COLUMNS = ("path", "label", "user", "group", "time", "split")
LONGEST_LINE = 1 << 24
"""Characters: a longer line is refused before it is read to its end."""


def load(path: str, declared: Declared) -> Parts:
    """Read a UTF-8 table with a header line.

    Columns: `path` (relative paths start at the table's folder), `label` (the class's name), `user` (whose image it
    is), `group` (the public group that this user belongs to), `time` (when it is from: dates by ISO 8601, or numbers),
    `split` (train or test). Without `split` a keyed hash decides: of the user where that column is present, so that one
    person's images stay together, else of the file's bytes. A column named as `filtered.MARK` says that the list was
    filtered by looking at private data. Other columns are not looked at.
    """
    table = paths.expanded(path)
    entries = []
    lines: dict[Hashable, int] = {}
    for line, row in _rows(table):
        entry = _entry(row, table, line)
        where = f"line {line} of {str(table)!r}"
        first = lines.setdefault(_identity(entry.path, where), line)
        if first != line:
            raise SfumatoError(
                f"{where} lists {row['path']!r}, which line {first} lists already",
                "list each image once, since a promise for one record covers one line",
            )
        if declared.classes is not None and entry.label not in declared.classes:
            raise UnknownClassError(
                f"{where} has the label {entry.label!r}",
                "which is not among the declared classes",
                "add it to the declared classes, or take the line out",
            )
        if entries and isinstance(entry.time, float) != isinstance(entries[0].time, float):
            raise SfumatoError(
                f"{where} has a time of another kind than the lines before it", f"give dates or numbers; {OTHER_NAME}"
            )
        entries.append(entry)
    if not entries:
        raise SfumatoError(f"table {str(table)!r} lists no image", "add a line for each image")
    return load_files(entries, declared, where=f"table {str(table)!r}")


def _rows(table: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Line number and fields by column, of one line after the other."""
    where = f"table {str(table)!r}"
    try:
        refuse_special(paths.status(table), where)
        with table.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.DictReader(_lines(stream), strict=True)
            _check_columns(list(reader.fieldnames or []), where)
            for row in reader:
                if any(field.strip() for field in row.pop(None, [])):
                    raise SfumatoError(
                        f"line {reader.line_num} of {str(table)!r} has more fields than the first line",
                        "put texts that hold commas in quotation marks",
                    )
                yield reader.line_num, row
    except (FileNotFoundError, NotADirectoryError):
        raise SfumatoError(f"{where} does not exist", "correct the path after csv:") from None
    except IsADirectoryError:
        raise SfumatoError(f"{where} is a folder", "give the .csv file, or use folder:") from None
    except PermissionError:
        raise SfumatoError(f"{where} may not be read", "give yourself permission to read it") from None
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


def _check_columns(columns: list[str], where: str) -> None:
    for column in ("path", "label"):
        if column not in columns:
            found = repr(",".join(columns)[:100])
            raise SfumatoError(
                f"{where} has no column {column!r} in its first line, which holds {found}",
                "begin the table with a line such as path,label or path,label,user,split",
            )
    if "group" in columns and "user" not in columns:
        raise SfumatoError(
            f"{where} has a column 'group' and no column 'user'", "add whose image each one is, or rename the column"
        )
    for column in COLUMNS:
        if columns.count(column) > 1:
            raise SfumatoError(f"{where} has two columns {column!r}", "take one of them out")


def _identity(file: Path, where: str) -> Hashable:
    """What tells a file that is listed there from others; refused where no ordinary file lies at the path."""
    try:
        known = paths.status(file)
        refuse_special(known, f"image {str(file)!r}, which {where} lists,")
    except (FileNotFoundError, NotADirectoryError):
        raise SfumatoError(
            f"{where} lists the image {str(file)!r}, which does not exist",
            "correct the path (relative ones start at the table's folder), or take the line out",
        ) from None
    except OSError as problem:
        raise SfumatoError(
            f"{where} lists the image {str(file)!r}, which cannot be read ({problem.strerror or problem})",
            "correct the path, or take the line out",
        ) from None
    return paths.identity(file, known)


def _entry(row: dict[str, str], table: Path, line: int) -> Entry:
    for column in COLUMNS:
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
    file = table.parent / paths.expanded(row["path"].strip())
    return Entry(
        path=file,
        label=row["label"].strip(),
        part=part,
        user=user,
        group=group,
        time=time,
        filtered=MARK in row,
    )


def _time(text: str, table: Path, line: int) -> TimeStamp:
    try:
        return time_stamp(text)
    except ValueError:
        raise SfumatoError(
            f"line {line} of {str(table)!r} has a time that is neither a date by ISO 8601 nor a finite number",
            f"write one {WRITTEN}; {OTHER_NAME}",
        ) from None
