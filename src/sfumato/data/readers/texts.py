"""Labelled texts from a table's columns, or as numbers in an archive."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sfumato._checks import SfumatoError
from sfumato.data import classes as class_lists
from sfumato.data.classes import Spellings, notes_on_parts, test_part
from sfumato.data.declared import Order, Texts
from sfumato.data.parts import Parts, Reading, RecordSets
from sfumato.data.readers import csv_lines as lines
from sfumato.data.record_users import as_array, stored_code, word_code
from sfumato.data.records import TextRecords
from sfumato.data.tokens import NextWords, Tokens

COLUMN = "text"
_EXAMPLE = "text,label or text,label,user,split"


@dataclass(frozen=True, kw_only=True)
class Text(lines.RecordFacts):
    """One labelled text from a line of a table."""

    text: str


def columns_of(first: Sequence[str], declared: Texts) -> tuple[str, ...] | None:
    """The text columns of a table with this first line; None for a table of images.

    >>> columns_of(["text", "label"], Texts())
    ('text',)
    >>> columns_of(["3", "A title", "A description"], Texts())
    ('column 2', 'column 3')
    """
    if declared.text_column is not None:
        return declared.text_column
    if _lacks_header(first):
        return tuple(f"column {number}" for number in range(2, len(first) + 1))
    return (COLUMN,) if COLUMN in first and "path" not in first else None


def _lacks_header(first: Sequence[str]) -> bool:
    """Whether a table has no header: its first line starts with the number of a class, as in AG News."""
    return len(first) > 1 and first[0].strip().isdecimal() and "label" not in first


def load(table: Path, first: Sequence[str], columns: Sequence[str], order: Order) -> Parts:
    """Reads a table with texts in `columns`, which are joined by a space. For next-word prediction its labels are the
    words themselves, and a column of labels is ignored.

    The other columns are those of a table of images (`label`, `user`, `group`, `time`, `split`). A table without a
    header has the number of the class first, counted from 1, and texts in all other columns, like AG News.

    Without `split` a keyed hash decides, of the user if known, else of the text.
    """
    where = f"table {str(table)!r}"
    if _lacks_header(first):
        names = [f"column {number}" for number in range(1, len(first) + 1)]
        lacking = [column for column in columns if column not in names]
        if lacking:
            raise SfumatoError(
                f"{where} has no column names, so no {lacking[0]!r}", "leave `text_column` out, or name the columns"
            )
        found = list(_bare_texts(table, names, columns, order.declared.labels.classes))
    else:
        loading, labels = order.declared.loading, None if order.declared.texts.task is None else ()
        own = {"label": loading.label_column, "user": loading.user_column}
        every = lines.with_subgroups(table, first, lambda: lines.rows_of(table), order.declared.purpose.groups_from)
        first, rows_of = lines.renamed(table, first, every, own)
        example = _EXAMPLE if labels is None else "text,user"
        lines.check_columns(first, columns, where, example=example, labels=labels)
        found = list(_texts(table, rows_of(), columns, order.names, labels))
    if not found:
        raise SfumatoError(f"{where} lists no text", "add a line for each text")
    named = {text.part for text in found}
    return _parts(_read(found, test_part(named)), order, where, notes_on_parts(named, where))


def _read(found: Sequence[Text], tested: str) -> list[Text]:
    """The texts of the training part and of the part `tested`; all texts if they name no part."""
    read = {None: None, "train": "train", tested: "test"}
    return [replace(text, part=read[text.part]) for text in found if text.part in read]


def _texts(
    table: Path,
    rows: Iterator[tuple[int, dict[str, str]]],
    columns: Sequence[str],
    names: Spellings,
    labels: Sequence[str] | None,
) -> Iterator[Text]:
    for line, row in rows:
        known = lines.facts_of(row, (), table, line, labels) | ({} if labels is None else {"label": ""})
        known = lines.facts_to_nfc(known, names)
        text = Text(text=" ".join(row[column] or "" for column in columns), **known)
        if labels is not None and not text.text.strip():
            raise SfumatoError(f"line {line} of {str(table)!r} has no text", "fill it in, or take the line out")
        yield text


def _bare_texts(
    table: Path, names: Sequence[str], columns: Sequence[str], classes: tuple[str, ...] | None
) -> Iterator[Text]:
    for line, row in lines.rows_of(table, names):
        number = (row[names[0]] or "").strip()
        if not number.isdecimal() or int(number) == 0:
            raise SfumatoError(
                f"line {line} of {str(table)!r} begins with {number[:40]!r}, which is not a class numbered from 1",
                "give the table a first line with column names, such as text,label",
            )
        label = str(int(number))
        if classes is not None:
            class_lists.require_named(int(number), len(classes), f"line {line} of {str(table)!r} has", first=1)
            label = classes[int(number) - 1]
        yield Text(text=" ".join(row[column] or "" for column in columns), label=label)


def _parts(found: Sequence[Text], order: Order, where: str, notes: tuple[str, ...]) -> Parts:
    key = order.owner_key
    lines.refuse_unwritable_names(found)
    form = _form(order)
    if isinstance(form, NextWords):
        classes = form.names
    else:
        classes = order.declared.labels.classes or class_lists.sort_names(str(text.label) for text in found)
        for text in found:
            class_lists.require_declared(text.label, classes, f"{where} has", "the text")
    stored = [text.text.encode("utf-8", "surrogatepass") for text in found]
    test = [text.in_test(content, order) for text, content in zip(found, stored, strict=True)]

    def part(side: bool) -> TextRecords:
        own = [place for place, is_test in enumerate(test) if is_test is side]
        texts = [found[place] for place in own]
        tokens, labels = _inputs_and_labels([text.text for text in texts], form)
        return TextRecords(
            tokens=tokens,
            codes=as_array(stored_code(key, stored[place]) + word_code(key, found[place].text) for place in own),
            texts=np.array([text.text for text in texts], dtype=object),
            rows=np.array(own, np.int64),
            **lines.columns_of(texts, classes, labels),
        )

    return Parts(
        records=RecordSets(train=part(False), test=part(True)),
        classes=classes,
        reading=Reading(size_rule=_size_rule(order), tokens=form, notes=notes, **lines.reading_of(found, order)),
    )


def load_numbers(
    arrays: dict[str, np.ndarray], order: Order, where: str, *, classes: tuple[str, ...], **reading: Any
) -> Parts:
    """Texts that are rows of numbers, in their own parts or split by the keyed hash.

    Args:
        arrays: `x_train` (N, T), `y_train` (N,), `x_test` and `y_test`, and optional further columns.
        reading: further fields of `Reading`.
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

    records = RecordSets(train=part("_train"), test=part("_test"))
    return Parts(records=records, classes=classes, reading=Reading(size_rule=_size_rule(order), tokens=form, **reading))


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
