"""csv:PATH - a table of image files with the columns path and label, and optionally user and split."""

from __future__ import annotations

import csv
import os
from pathlib import Path

from sfumato._checks import SfumatoError
from sfumato.data.files import Entry, load_files
from sfumato.data.filtered import MARK
from sfumato.data.records import Declared, Loaded


def load(path: str, declared: Declared) -> Loaded:
    """Read a UTF-8 table with a header line.

    Columns: `path` (relative paths start at the table's folder), `label` (the class's name), `user` (whose picture it
    is), `split` (train or test). Without `split` a keyed hash decides: of the user where that column is present, so
    that one person's pictures stay together, else of the file's bytes. A column named as `filtered.MARK` says that the
    list was filtered by looking at private data. Other columns are not looked at.
    """
    table = Path(path).expanduser()
    entries = []
    lines: dict[Path, int] = {}
    for line, row in _rows(table):
        entry = _entry(row, table, line)
        if entry.path in lines:
            raise SfumatoError(
                f"line {line} of {str(table)!r} lists {row['path']!r}, which line {lines[entry.path]} lists already",
                "list each image once, since a promise for one record covers one line",
            )
        if not os.path.isfile(entry.path):
            raise SfumatoError(
                f"line {line} of {str(table)!r} lists the image {str(entry.path)!r}, which does not exist",
                "correct the path (relative ones start at the table's folder), or take the line out",
            )
        if declared.classes is not None and entry.label not in declared.classes:
            raise SfumatoError(
                f"line {line} of {str(table)!r} has the label {entry.label!r}, which is not among the declared classes",
                "add it to the declared classes, or take the line out",
            )
        lines[entry.path] = line
        entries.append(entry)
    if not entries:
        raise SfumatoError(f"table {str(table)!r} lists no image", "add a line for each image")
    return load_files(entries, declared, where=f"table {str(table)!r}")


def _rows(table: Path) -> list[tuple[int, dict[str, str]]]:
    try:
        with table.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.DictReader(stream, strict=True)
            columns = reader.fieldnames or []
            for column in ("path", "label"):
                if column not in columns:
                    found = repr(",".join(columns)[:100])
                    raise SfumatoError(
                        f"table {str(table)!r} has no column {column!r} in its first line, which holds {found}",
                        "begin the table with a line such as path,label or path,label,user,split",
                    )
            return [(reader.line_num, row) for row in reader]
    except FileNotFoundError:
        raise SfumatoError(f"table {str(table)!r} does not exist", "correct the path after csv:") from None
    except IsADirectoryError:
        raise SfumatoError(f"table {str(table)!r} is a folder", "give the .csv file, or use folder:") from None
    except PermissionError:
        raise SfumatoError(f"table {str(table)!r} may not be read", "give yourself permission to read it") from None
    except (UnicodeDecodeError, csv.Error) as problem:
        reason = "it is not UTF-8 text" if isinstance(problem, UnicodeDecodeError) else problem
        raise SfumatoError(
            f"table {str(table)!r} cannot be read as comma-separated text ({reason})", "save it as CSV in UTF-8"
        ) from None


def _entry(row: dict[str, str], table: Path, line: int) -> Entry:
    for column in ("path", "label", "user", "split"):
        if column in row and not (row[column] or "").strip():
            raise SfumatoError(
                f"line {line} of {str(table)!r} has no {column}", f"fill in its {column}, or take the line out"
            )
    part = row["split"].strip() if "split" in row else None
    if part not in ("train", "test", None):
        raise SfumatoError(f"line {line} of {str(table)!r} has the split {part!r}", "write train or test")
    user = row["user"].strip() if "user" in row else None
    file = table.parent / Path(row["path"].strip()).expanduser()
    return Entry(path=file, label=row["label"].strip(), part=part, user=user, filtered=MARK in row)
