"""csv:PATH - a table of image files (columns path and label) or texts (columns text and label), compressed or not, with
optional columns user, group and split. Instead of label, images may have a column for each of several labels. Also
texts as numbers in an archive."""

from __future__ import annotations

import csv
import gzip
import itertools
import re
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from sfumato._checks import SfumatoError
from sfumato._files import path_errors, refuse_special
from sfumato.data import paths
from sfumato.data.classes import (
    missing,
    part_by_name,
    refuse_unwritable,
    require_declared,
    require_named,
    sort_names,
    to_nfc,
)
from sfumato.data.declared import Order, Texts
from sfumato.data.readers.files import load_files
from sfumato.data.readers.listing import FACTS, Listing, ListingBuilder, columns_of, not_binary, refuse_empty
from sfumato.data.record_users import as_array, record_in_test, refuse_several, stored_code, word_code
from sfumato.data.records import Files, Identities, TextBuffer, TextRecords
from sfumato.data.source import Parts
from sfumato.data.subsets import MARK
from sfumato.data.tokens import NextWords, Tokens

_QUOTED = re.compile('"[^"]*"')
_BINARY = {"0": 0, "1": 1, "0.0": 0, "1.0": 1}
"""Values of a label that is false or true. Tables of floating-point numbers write 1.0."""
LONGEST_LINE = 1 << 24
"""Characters. A longer line is refused before it is read completely."""


def load(path: str, order: Order) -> Parts:
    """Reads a UTF-8 table with a header line; for texts see `load_texts`.

    Columns: `path` (relative to the table's folder), `label` (name of the class), `user` (user of the image), `group`
    (public group of the user), `split` (train or test). Without `split` a keyed hash decides: of the user if that
    column exists, so that the images of one person stay together, else of the file's bytes. With `user_from` "dicom"
    the patient identifier of each file is the user, with "class" its label, and there is no column user. `groups_from`
    names the column with each record's group for figures. A column named `subsets.MARK` marks a list that was filtered
    by looking at private data. Other columns are ignored.

    For images, `label_columns` name columns of 0 and 1 that replace `label`; none, one or many may be 1.
    """
    table = paths.expanded(path)
    first = first_of(table)
    columns = text_columns(first, order.declared.texts)
    if columns is None or order.declared.loading.path_column is not None:
        return _load_images(table, first, rows_of(table), order)
    order.declared.labels.refuse_columns(f"table {str(table)!r} of texts")
    return load_texts(table, first, columns, order)


def read_frame(frame: Any, order: Order) -> Parts:
    """Reads a pandas DataFrame with these columns. Paths are relative to the working directory."""
    columns = [to_nfc(str(name)) for name in frame.columns]
    plain = frame.astype(object).where(frame.notna(), None)

    texts = (["" if value is None else str(value) for value in row] for row in plain.itertuples(index=False, name=None))
    lines = ((line, dict(zip(columns, values, strict=True))) for line, values in enumerate(texts))
    return _load_images(Path("DataFrame"), columns, lines, order)


def _load_images(
    table: Path, first: Sequence[str], lines_of: Iterable[tuple[int, dict[str, str]]], order: Order
) -> Parts:
    classes, labels = order.declared.labels.classes, order.declared.labels.label_columns
    where = f"table {str(table)!r}"
    example = ",".join(["path", *labels]) if labels else "path,label or path,label,user,split"
    remedy = f"begin the table with a line such as {example}"
    columns = columns_of(first, ("path",), order, where, remedy=remedy, labels=labels)
    builder, files, lines, identities = ListingBuilder(), TextBuffer(), array("q"), Identities()
    for line, row in lines_of:
        place = f"line {line} of {str(table)!r}"
        facts = facts_of(row, columns, place, labels)
        path = _resolve(table, facts.pop("path"))
        name = f"image {str(path)!r}, which {place} lists,"
        with path_errors(name, "correct the path (relative ones start at the table's folder), or remove the line"):
            status = paths.status(path)
            refuse_special(status, name)
        identities.add(path, status)
        if classes is not None:
            require_declared(to_nfc(facts["label"]), classes, f"{place} has", "the line")
        refuse_unwritable(str(path), "image", longest=None)
        builder.add(**facts)
        files.append(str(path))
        lines.append(line)
    refuse_empty(len(builder), where)
    identities.refuse_repeated(lambda place: f"image {files[place]!r} in line {lines[place]} of {str(table)!r}")
    return load_files(builder.listing(Files(files)), order, where=where, notes=builder.notes(where))


def load_texts(table: Path, first: Sequence[str], columns: Sequence[str], order: Order) -> Parts:
    """Reads a table with texts in `columns`, which are joined by a space. For next-word prediction its labels are the
    words themselves, and a column of labels is ignored.

    The other columns are those of a table of images. A table without a header has the number of the class first,
    counted from 1, and texts in all other columns, like AG News. Without `split` a keyed hash decides, of the user if
    known, else of the text.
    """
    where, builder, buffer = f"table {str(table)!r}", ListingBuilder(), TextBuffer()
    if lacks_header(first):
        names = [f"column {number}" for number in range(1, len(first) + 1)]
        if absent := [column for column in columns if column not in names]:
            raise SfumatoError(
                f"{where} has no column names, so no {absent[0]!r}", "leave `text_column` out, or name the columns"
            )
        for line, row in rows_of(table, names):
            place = f"line {line} of {str(table)!r}"
            builder.add(numbered_class(row[names[0]], order, place))
            buffer.append(" ".join(row[column] or "" for column in columns))
    else:
        labels = None if order.declared.texts.task is None else ()
        example = "text,label or text,label,user,split" if labels is None else "text,user"
        remedy = f"begin the table with a line such as {example}"
        column_of = columns_of(first, columns, order, where, remedy=remedy, labels=labels)
        for line, row in rows_of(table):
            place = f"line {line} of {str(table)!r}"
            builder.add(**{"label": "", **facts_of(row, column_of, place, labels)})
            text = " ".join(row[column] or "" for column in columns)
            if labels is not None and not text.strip():
                raise missing(place, "text")
            buffer.append(text)
    refuse_empty(len(buffer), where)
    return text_parts(builder.listing(Files(buffer)), buffer, order, where, builder.notes(where))


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


@contextmanager
def _reading(table: Path) -> Iterator[TextIO]:
    """Opens the table as text. Errors name it."""
    where = f"table {str(table)!r}"
    with path_errors(where, "correct the path after csv:", "give the .csv file, or use folder:"):
        try:
            refuse_special(paths.status(table), where)
            settings: dict[str, Any] = {"mode": "rt", "encoding": "utf-8-sig", "newline": ""}
            with gzip.open(table, **settings) if table.suffix == ".gz" else table.open(**settings) as stream:
                yield stream
        except (gzip.BadGzipFile, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as problem:
            reason: object = problem if isinstance(problem, csv.Error) else "it is not a complete gzip file"
            reason = "it is not UTF-8 text" if isinstance(problem, UnicodeDecodeError) else reason
            message = f"{where} cannot be read as comma-separated text ({reason})"
            raise SfumatoError(message, "save it as CSV in UTF-8") from None


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


def facts_of(
    row: Mapping[str, str], columns: Mapping[str, str], where: str, labels: Sequence[str] | None = None
) -> dict[str, Any]:
    """The facts of a line, as arguments of `ListingBuilder.add`, and its path. None may be empty.

    Args:
        columns, labels: as for `columns_of`.
        where: name of the line in errors.
    """
    facts: dict[str, Any] = {fact: (row[column] or "").strip() for fact, column in columns.items()}
    for fact, text in facts.items():
        if not text:
            raise missing(where, fact if fact in FACTS else columns[fact])
    if "user" in facts:
        refuse_several(facts["user"], where)
    if "split" in facts:
        split = facts.pop("split")
        facts["part"] = part_by_name(split)
        if facts["part"] is None:
            raise SfumatoError(f"{where} has the split {split!r}", "write train, test or validation")
    if labels:
        facts["label"] = tuple(_BINARY.get((row[column] or "").strip(), -1) for column in labels)
        for column, value in zip(labels, facts["label"], strict=True):
            if value < 0:
                raise not_binary(column, where)
    return {**facts, "filtered": MARK in row}


def _resolve(table: Path, text: str) -> Path:
    """The path of a listed image, relative to the table's folder. If no such file exists, backslashes are treated as
    Windows separators."""
    path = table.parent / paths.expanded(text)
    return path if "\\" not in text or path.exists() else table.parent / text.replace("\\", "/")


COLUMN = "text"


def text_columns(first: Sequence[str], declared: Texts) -> tuple[str, ...] | None:
    """The text columns of a table with this first line; None for a table of images.

    >>> text_columns(["text", "label"], Texts())
    ('text',)
    >>> text_columns(["3", "A title", "A description"], Texts())
    ('column 2', 'column 3')
    """
    if declared.text_column is not None:
        return declared.text_column
    if lacks_header(first):
        return tuple(f"column {number}" for number in range(2, len(first) + 1))
    return (COLUMN,) if COLUMN in first and "path" not in first else None


def lacks_header(first: Sequence[str]) -> bool:
    """Whether a table has no header: its first line starts with the number of a class, as in AG News."""
    return len(first) > 1 and first[0].strip().isdecimal() and "label" not in first


def numbered_class(field: str | None, order: Order, where: str) -> str:
    """The class of a line that begins with its number, counted from 1."""
    number = (field or "").strip()
    if not number.isdecimal() or int(number) == 0:
        raise SfumatoError(
            f"{where} begins with {number[:40]!r}, which is not a class numbered from 1",
            "give the table a first line with column names, such as text,label",
        )
    classes = order.declared.labels.classes
    if classes is None:
        return str(int(number))
    require_named(int(number), len(classes), f"{where} has", first=1)
    return classes[int(number) - 1]


def text_parts(listing: Listing, buffer: TextBuffer, order: Order, where: str, notes: tuple[str, ...]) -> Parts:
    """Both parts of listed texts, split by the keyed hash of each user or text if the list names no parts."""
    key, share, form = order.owner_key, order.declared.loading.share, _form(order)
    reading, listing = listing.reading(order), listing.split_by_users(order)
    if isinstance(form, NextWords):
        classes = form.names
    else:
        classes = order.declared.labels.classes or sort_names(listing.names)
        for name in listing.names:
            require_declared(name, classes, f"{where} has", "the text")
        listing = listing.with_classes(classes, "the text")
    texts = [buffer[place] for place in listing.places.tolist()]
    stored = [text.encode("utf-8", "surrogatepass") for text in texts]
    test = listing.test
    if test is None:
        test = np.array([record_in_test(key, content, None, share) for content in stored], bool)

    def part(rows: np.ndarray) -> TextRecords:
        chosen = [texts[row] for row in rows]
        tokens, labels = _inputs_and_labels(chosen, form)
        return TextRecords(
            tokens=tokens,
            codes=as_array(stored_code(key, stored[row]) + word_code(key, texts[row]) for row in rows),
            texts=np.array(chosen, dtype=object),
            rows=rows,
            **(listing.facts(rows) | ({} if labels is None else {"labels": labels})),
        )

    return Parts(
        train=part(np.flatnonzero(~test)),
        test=part(np.flatnonzero(test)),
        classes=classes,
        size_rule=_size_rule(order),
        tokens=form,
        notes=notes,
        **reading,
    )


def load_numbers(
    arrays: dict[str, np.ndarray], order: Order, where: str, *, classes: tuple[str, ...], **reading: Any
) -> Parts:
    """Texts that are rows of numbers, in their own parts or split by the keyed hash.

    Args:
        arrays: `x_train` (N, T), `y_train` (N,), `x_test` and `y_test`, and optional further columns.
        reading: further fields of `Parts`.
    """
    form, key = _form(order, numbers=True), order.owner_key

    def part(side: str) -> TextRecords:
        x = arrays[f"x{side}"]
        form.check(x, f"x{side} of {where}")
        rows = x.astype(np.int32)
        both = (
            stored_code(key, row.tobytes()) + stored_code(key, np.trim_zeros(row, "b").tobytes())
            for row in rows.astype("<i4")
        )
        return TextRecords(
            tokens=_stacked([form.pad(row) for row in rows], form),
            labels=arrays[f"y{side}"],
            codes=as_array(both),
            users=arrays.get(f"users{side}"),
            groups=arrays.get(f"groups{side}"),
        )

    train, test = part("_train"), part("_test")
    return Parts(train=train, test=test, classes=classes, size_rule=_size_rule(order), tokens=form, **reading)


def _form(order: Order, *, numbers: bool = False) -> Tokens:
    texts = order.declared.texts
    if numbers and texts.task is not None:
        raise SfumatoError(f"task {texts.task} is for tables of texts, and these are numbers", "give a csv: of texts")
    kind = Tokens if texts.task is None else NextWords
    return kind.from_declared(length=texts.length, vocabulary=texts.vocabulary, words=texts.words, numbers=numbers)


def _inputs_and_labels(texts: Sequence[str], form: Tokens) -> tuple[np.ndarray, np.ndarray | None]:
    """The numbers int32 (n, T) of texts; for next-word prediction also the words that follow, int64 (n, T)."""
    if not isinstance(form, NextWords):
        return _stacked([form.pad(form.numbers(text)) for text in texts], form), None
    inputs, targets = zip(*map(form.inputs_and_targets, texts), strict=True) if texts else ((), ())
    return _stacked(inputs, form), _stacked(targets, form).astype(np.int64)


def _size_rule(order: Order) -> str:
    return "declared" if order.declared.texts.length else "by rule"


def _stacked(rows: Sequence[np.ndarray], form: Tokens) -> np.ndarray:
    return np.stack(rows) if rows else np.zeros((0, form.length), np.int32)
