"""Labelled texts: from a table's columns, or as numbers in an archive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sfumato._checks import SfumatoError
from sfumato.data.classes import require_declared, require_named, sort_names
from sfumato.data.declared import Order, Texts
from sfumato.data.readers.listing import Listing
from sfumato.data.record_users import as_array, record_in_test, stored_code, word_code
from sfumato.data.records import TextBuffer, TextRecords
from sfumato.data.source import Parts
from sfumato.data.tokens import NextWords, Tokens

COLUMN = "text"


def columns_of(first: Sequence[str], declared: Texts) -> tuple[str, ...] | None:
    """The text columns of a table with this first line; None for a table of images.

    >>> columns_of(["text", "label"], Texts())
    ('text',)
    >>> columns_of(["3", "A title", "A description"], Texts())
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


def load_texts(listing: Listing, buffer: TextBuffer, order: Order, where: str, notes: tuple[str, ...]) -> Parts:
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
        own = [texts[row] for row in rows]
        tokens, labels = _inputs_and_labels(own, form)
        return TextRecords(
            tokens=tokens,
            codes=as_array(stored_code(key, stored[row]) + word_code(key, texts[row]) for row in rows),
            texts=np.array(own, dtype=object),
            rows=rows,
            **(listing.known(rows) | ({} if labels is None else {"labels": labels})),
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
