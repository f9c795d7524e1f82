"""csv:PATH - a table of image files (columns path and label) or texts (columns text and label), with optional columns
user, group, time and split. Instead of label, images may have a column for each of several labels."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sfumato._checks import SfumatoError
from sfumato._files import refuse_special
from sfumato.data import paths
from sfumato.data.classes import refuse_unwritable, require_declared, to_nfc
from sfumato.data.declared import Order
from sfumato.data.parts import Parts
from sfumato.data.readers import csv_lines, texts
from sfumato.data.readers.files import load_files
from sfumato.data.readers.listing import ListingBuilder
from sfumato.data.records import Files, Identities, TextBuffer

_PATH = ("path",)
SHOWN = 5
"""Largest number of further lines named in an error."""


def load(path: str, order: Order) -> Parts:
    """Reads a UTF-8 table with a header line; for texts see `texts.load`.

    Columns: `path` (relative to the table's folder), `label` (name of the class), `user` (user of the image), `group`
    (public group of the user), `time` (ISO 8601 dates, or numbers), `split` (train or test). Without `split` a keyed
    hash decides: of the user if that column exists, so that the images of one person stay together, else of the file's
    bytes. With `user_from` "dicom" the patient identifier of each file is the user, with "class" its label, and there
    is no column user. `groups_from` names the column with each record's group for figures. A column named
    `subsets.MARK` marks a list that was filtered by looking at private data. Other columns are ignored.

    For images, `label_columns` name columns of 0 and 1 that replace `label`; none, one or many may be 1.
    """
    table = paths.expanded(path)
    first = csv_lines.first_of(table)
    columns = texts.columns_of(first, order.declared.texts)
    if columns is not None and order.declared.loading.path_column is None:
        if order.declared.labels.label_columns is not None:
            raise SfumatoError(
                f"`label_columns` are for images, but table {str(table)!r} holds texts",
                "give one, in a column called label",
            )
        return texts.load(table, first, columns, order)
    return _load_images(table, first, lambda: csv_lines.rows_of(table), order)


def read_frame(frame: Any, order: Order) -> Parts:
    """Reads a pandas DataFrame with these columns. Paths are relative to the working directory."""
    columns = [to_nfc(str(name)) for name in frame.columns]
    plain = frame.astype(object).where(frame.notna(), None)

    def lines() -> Iterator[tuple[int, dict[str, str]]]:
        for line, values in enumerate(plain.itertuples(index=False, name=None)):
            yield line, {name: "" if value is None else str(value) for name, value in zip(columns, values, strict=True)}

    return _load_images(Path("DataFrame"), columns, lines, order)


def _load_images(table: Path, first: Sequence[str], lines_of: csv_lines.Lines, order: Order) -> Parts:
    declared = order.declared
    labels = declared.labels.label_columns
    named = declared.loading
    given = {"path": named.path_column, "label": named.label_column, "user": named.user_column}
    lines_of = csv_lines.with_subgroups(table, first, lines_of, declared.purpose.groups_from)
    first, lines_of = csv_lines.renamed(table, first, lines_of, given)
    example = ",".join(["path", *labels]) if labels else "path,label or path,label,user,split"
    csv_lines.check_columns(first, _PATH, f"table {str(table)!r}", example=example, labels=labels)
    rule = declared.people.user_from
    if rule is not None and "user" in first:
        raise SfumatoError(
            f"table {str(table)!r} has the column user, but `user_from={rule}` is given", "leave one of them out"
        )
    found, files, lines, several, absent = (
        ListingBuilder(order.names),
        TextBuffer(),
        array("q"),
        Identities(),
        array("q"),
    )
    for line, row in lines_of():
        known = csv_lines.facts_of(row, _PATH, table, line, labels)
        where = f"line {line} of {str(table)!r}"
        path = _resolve(table, row["path"].strip())
        if (on_disk := _status(path, where)) is None:
            absent.append(line)
            continue
        several.add(path, on_disk)
        if declared.labels.classes is not None:
            require_declared(
                order.names.normalise("class", known["label"]), declared.labels.classes, f"{where} has", "the line"
            )
        refuse_unwritable(str(path), "image", longest=None)
        found.add(**known)
        files.append(str(path))
        lines.append(line)
    if absent:
        raise _missing_images(table, absent, next(row["path"].strip() for line, row in lines_of() if line == absent[0]))
    if not len(found):
        raise SfumatoError(f"table {str(table)!r} lists no image", "add a line for each image")
    for earlier, later in several.repeated():
        path = next(row["path"] for line, row in lines_of() if line == lines[later])
        raise SfumatoError(
            f"line {lines[later]} of {str(table)!r} lists {path!r}, which line {lines[earlier]} lists already",
            "list each image once: the guarantee for one record covers one line",
        )
    where = f"table {str(table)!r}"
    return load_files(found.listing(Files(files)), order, where=where, notes=found.notes(where))


def _resolve(table: Path, text: str) -> Path:
    """The path of a listed image, relative to the table's folder. If no such file exists, backslashes are treated as
    Windows separators."""
    path = table.parent / paths.expanded(text)
    return path if "\\" not in text or path.exists() else table.parent / text.replace("\\", "/")


def _missing_images(table: Path, lines: Sequence[int], first: str) -> SfumatoError:
    """The error for listed images that do not exist, with their number and lines."""
    others = ""
    if len(lines) > 1:
        shown = ", ".join(map(str, lines[1 : 1 + SHOWN])) + (", ..." if len(lines) > 1 + SHOWN else "")
        others = f", and so do {len(lines) - 1:,} other lines ({shown})"
    return SfumatoError(
        f"line {lines[0]} of {str(table)!r} lists the image {str(_resolve(table, first))!r}, which does not exist"
        + others,
        "correct the path (relative ones start at the table's folder), or remove the line",
    )


def _status(file: Path, where: str) -> os.stat_result | None:
    """`os.stat` of a listed file; None if it does not exist. Refuses anything but ordinary files."""
    try:
        known = paths.status(file)
        refuse_special(known, f"image {str(file)!r}, which {where} lists,")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as problem:
        raise SfumatoError(
            f"{where} lists the image {str(file)!r}, which cannot be read ({problem.strerror or problem})",
            "correct the path, or remove the line",
        ) from None
    return known
