"""Arrow tables: parquet:PATH; and hf:PATH, data sets of Hugging Face's `datasets` (on disk, as Parquet, or by name
on the hub), read as rows of stored tables, memory-mapped or in memory. Transforms are ignored."""

from __future__ import annotations

import importlib.util
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from sfumato._checks import SfumatoError
from sfumato.data import classes as class_lists
from sfumato.data.classes import part_in_name, parts_read, to_nfc, user_name
from sfumato.data.declared import Order
from sfumato.data.decoding import read_bytes
from sfumato.data.paths import UnreadableError, expanded, is_data_set
from sfumato.data.readers.files import load_files
from sfumato.data.readers.listing import Listing, Texts, check_names, columns_of, not_binary, refuse_empty
from sfumato.data.readers.shards import (
    ParquetRows,
    bytes_in,
    check_same,
    column_named,
    features_of,
    image_column,
    parts_of,
    shards_of,
)
from sfumato.data.record_users import SEPARATOR, refuse_several
from sfumato.data.source import Parts
from sfumato.data.subsets import MARK

if TYPE_CHECKING:
    import pyarrow as pa


LABEL = "label"
_FACTS = ("user", "group", "subgroup")


def listing(stored: ParquetRows, parts: Sequence[str | None], order: Order, where: str) -> Listing:
    """The listing of all rows, read by row groups.

    Args:
        parts: part of each shard, "train" or "test"; None to let the keyed hash decide.
    """
    refuse_empty(len(stored), where)
    reader = _Reader(stored, order, where)
    for group in range(len(stored.groups)):
        reader.add(group)
    part_of = np.repeat([parts[shard] == "test" for shard, _ in stored.groups], np.diff(stored.starts))
    labels, names, written = reader.known_labels()
    groups = [*reader.texts["group"].names, *reader.texts["subgroup"].names]
    check_names(names, groups)
    return Listing(
        stored=stored,
        places=np.arange(len(stored)),
        labels=labels,
        names=names,
        written=written,
        test=None if parts[0] is None else part_of,
        users=reader.texts["user"].numbers() if "user" in reader.extra_columns else None,
        people=tuple(reader.texts["user"].names),
        groups=reader.texts["group"].array() if "group" in reader.extra_columns else None,
        subgroups=reader.texts["subgroup"].array() if "subgroup" in reader.extra_columns else None,
        filtered=MARK in stored.schema.names,
    )


class _Reader:
    """Collects the values of the columns, one row group at a time."""

    def __init__(self, stored: ParquetRows, order: Order, where: str):
        schema, loading = stored.schema, order.declared.loading
        self._stored, self._declared, self._where = stored, order.declared.labels, where
        spelt = {to_nfc(name): name for name in schema.names}  # declared columns as spelt in the files
        column, several = loading.label_column, self._declared.label_columns
        self._listed = None
        if several is not None and not {*several} & {*spelt}:
            self._listed = _list_column(schema, column and spelt.get(column, column))
        label = None
        if several is None and column is None:
            label = to_nfc(column_named(schema, LABEL, "ClassLabel", str(stored.shards[0])))
        binary = () if self._listed else several
        remedy = "give columns of 0 and 1 as `label_columns`"
        columns = columns_of([*spelt], (), order, where, remedy=remedy, labels=binary, label=label)
        self._labels = [self._listed] if self._listed else [spelt[name] for name in several or (columns["label"],)]
        self.extra_columns = {fact: spelt[columns[fact]] for fact in _FACTS if fact in columns}
        self._numbers: list[np.ndarray] = []
        self.texts = {name: Texts() for name in ("label", "user", "group", "subgroup")}

    def add(self, group: int) -> None:
        """Adds the rows of a group."""
        names = list(dict.fromkeys([*self._labels, *self.extra_columns.values()]))
        table, first = self._stored.table(group, names), self._stored.starts[group]
        for name in names:
            column = table[name].combine_chunks()
            if column.null_count:
                self._refuse(first + int(np.argmax(column.is_null().to_numpy(zero_copy_only=False))), name)
        for fact, name in self.extra_columns.items():
            self._text(self.texts[fact], table[name].combine_chunks(), fact, first)
        columns = [table[name].combine_chunks() for name in self._labels]
        if self._listed is not None:
            self._numbers.append(self._members(columns[0], first))
        elif self._declared.label_columns is not None:
            numbers = [column.to_numpy(zero_copy_only=False) for column in columns]
            for name, values in zip(self._labels, numbers, strict=True):
                if values.dtype.kind not in "biuf" or not np.isin(values, (0, 1)).all():
                    raise not_binary(name, self._where)
            self._numbers.append(np.stack(numbers, axis=1).astype(np.int64))
        elif _is_integer_type(columns[0].type):
            self._numbers.append(columns[0].to_numpy(zero_copy_only=False).astype(np.int64))
        else:
            self._text(self.texts["label"], columns[0], self._labels[0], first)

    def known_labels(self) -> tuple[np.ndarray, tuple[str, ...], tuple[str, ...] | None]:
        """Labels, the names they are positions in, and the class list if stored with them."""
        if self._declared.label_columns is not None:
            return np.concatenate(self._numbers), (), None
        if not self._numbers:
            return self.texts["label"].numbers().astype(np.int64), tuple(self.texts["label"].names), None
        labels = np.concatenate(self._numbers)
        stored = features_of(self._stored.schema).get(self._labels[0], {}).get("names")
        written = class_lists.declared_names(stored) if stored and len(stored) > 1 else None
        names = written or self._declared.classes
        if names is None:
            distinct, places = np.unique(labels, return_inverse=True)
            return places, tuple(map(str, distinct.tolist())), None
        for place in np.flatnonzero((labels < 0) | (labels >= len(names)))[:1].tolist():
            label = int(labels[place])
            class_lists.require_named(label, len(names), f"{self._stored.name(place)!r} has", first=0)
            raise class_lists.no_class(f"{self._stored.name(place)!r} has", label)
        return labels, names, None if self._declared.classes else written

    def _refuse(self, place: int, value: str) -> NoReturn:
        raise class_lists.missing(f"image {self._stored.name(place)!r}", value)

    def _text(self, texts: Texts, column: pa.Array, name: str, first: int) -> None:
        kind = str(column.type)
        if name == "user" and _lists(kind):
            for place, users in enumerate(column.to_pylist()):
                if len(users) > 1:
                    refuse_several(SEPARATOR.join(map(str, users)), f"image {self._stored.name(first + place)!r}")
        if not (
            _is_integer_type(column.type) or "string" in kind or kind.startswith("dictionary<values=string")
        ) or _lists(kind):
            remedy = "write integers or text"
            if _lists(kind) and name not in _FACTS:
                columns = " ".join(inner_names(self._stored.schema, name) or ())
                remedy = f"give several labels as `label_columns` {columns}".rstrip()
            raise SfumatoError(f"column {name!r} of {self._where} is {kind[:60]}", remedy)
        encoded = column.cast("string").dictionary_encode()
        names = encoded.dictionary.to_pylist()
        places = encoded.indices.to_numpy(zero_copy_only=False)
        for place in [place for place, text in enumerate(names) if not text.strip()][:1]:
            self._refuse(first + int(np.argmax(places == place)), name)
        if name == "user":
            for place, text in enumerate(names):
                refuse_several(text, f"image {self._stored.name(first + int(np.argmax(places == place)))!r}")
        normalise = user_name if name == "user" else to_nfc
        texts.extend([normalise(text.strip()) for text in names], places)

    def _members(self, column: pa.Array, first: int) -> np.ndarray:
        """0 or 1 for each of `label_columns`, from lists of labels: by name, by number if class labels have names, or
        lists of 0 and 1."""
        wanted, names = self._declared.label_columns or (), inner_names(self._stored.schema, str(self._listed))
        if names is not None:
            self._declared.require_columns(names, self._where)
        result = np.zeros((len(column), len(wanted)), np.int64)
        for row, labels in enumerate(column.to_pylist()):
            numbers = all(type(label) is int for label in labels)
            if names is None and numbers and len(labels) == len(wanted) and {*labels} <= {0, 1}:
                result[row] = labels
                continue
            if names is not None and numbers and all(0 <= label < len(names) for label in labels):
                labels = [names[label] for label in labels]
            if not all(isinstance(label, str) for label in labels):
                self._refuse(first + row, f"labels that are names or {len(wanted)} of 0 and 1")
            present = {to_nfc(label) for label in labels}
            result[row] = [name in present for name in wanted]
        return result


def _lists(kind: str) -> bool:
    return kind.startswith(("list<", "large_list<", "fixed_size_list<"))


def _list_column(schema: pa.Schema, column: str | None) -> str | None:
    """The column with lists of labels: the declared one, or else label or labels; None if there is none."""
    names = [column] if column else [LABEL, f"{LABEL}s"]
    return next((name for name in names if name in schema.names and _lists(str(schema.field(name).type))), None)


def inner_names(schema: pa.Schema, name: str) -> tuple[str, ...] | None:
    """The names of the class labels in a column of lists, if `datasets` wrote them."""
    inner = features_of(schema).get(name, {}).get("feature")
    return tuple(map(to_nfc, inner["names"])) if isinstance(inner, dict) and inner.get("names") else None


def _is_integer_type(kind: pa.DataType) -> bool:
    return str(kind).lstrip("u").startswith("int")


SUFFIX = ".parquet"


def load_parquet(path: str, order: Order) -> Parts:
    """Reads a Parquet file, all Parquet files in a folder, or those that match a pattern, in order of their names.

    Columns: `image` (or the only column with the feature Image): bytes of an image file, alone or in a struct
    {bytes, path}; `label` (or the only class label): text, or whole numbers, with names if `datasets` wrote them;
    `user` and `group` as in a table. With `label_columns`, columns of 0 and 1 replace `label`. Files or folders
    named train and test (or validation, `part_in_name`) are the parts; otherwise a keyed hash decides, of the user if
    known, else of the image's bytes. Other columns are ignored.
    """
    where = f"parquet:{path}"
    shards, parts, notes = parts_of(find_parquet(path), where)
    stored = ParquetRows(shards)
    return load_files(listing(stored, parts, order, where), order, where=where, notes=notes)


def find_parquet(path: str) -> list[Path]:
    """The files of this path. Refuses if pyarrow is not installed."""
    if importlib.util.find_spec("pyarrow") is None:
        raise SfumatoError("parquet: needs pyarrow, which is not installed", "pip install 'sfumato[parquet]'")
    return shards_of(path, "parquet", SUFFIX)


GROUP = 100
"""Rows per read."""


class TableRows(ParquetRows):
    """Images in the rows of consecutive data sets.

    Args:
        sets: pairs of a name and a `datasets.Dataset`, all of which have the same columns.
    """

    def __init__(self, sets: Sequence[tuple[str, Any]]):
        self._named = list(sets)
        self.shards = [name for name, _ in sets]  # type: ignore[assignment]
        self._sets = [data_set.with_format("arrow") for _, data_set in sets]
        self.groups, counts = [], [0]
        for number, (name, data_set) in enumerate(sets):
            schema = data_set.features.arrow_schema
            if number == 0:
                self.schema = schema
                self.image = image_column(schema, name)
            check_same(self.schema, schema, self.image, name)
            starts = range(0, len(data_set), GROUP)
            self.groups += [(number, group) for group in range(len(starts))]
            counts += [min(GROUP, len(data_set) - start) for start in starts]
        self.starts = np.cumsum(counts).tolist()
        self._cache: OrderedDict[int, pa.Array] = OrderedDict()
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._named,)

    def table(self, group: int, names: Sequence[str]) -> pa.Table:
        """The named columns of a group of rows."""
        file, number = self.groups[group]
        whole = [name.removesuffix(".bytes") if name not in self.schema.names else name for name in names]
        rows = self._sets[file].with_format("arrow", columns=list(dict.fromkeys(whole)))
        return rows[number * GROUP : (number + 1) * GROUP]

    def read(self, place: int) -> bytes:
        """The stored image of a row, from the table or from the file that the table names."""
        try:
            return super().read(place)
        except UnreadableError:
            group = self._group(place)
            if bytes_in(self.schema, self.image) == self.image:
                raise
            column = self.table(group, [self.image])[self.image]
            path = (column[place - self.starts[group]].as_py() or {}).get("path")
            if not path:
                raise
            return read_bytes(path)


_NAME = re.compile(r"(?!.*(--|\.\.))[A-Za-z0-9_][\w.-]{0,95}(/[A-Za-z0-9_][\w.-]{0,95})?(?<![-.])", re.ASCII)
"""Name of a data set on the hub: `name` or `owner/name`."""
_FILES = (".parquet", ".arrow", ".csv", ".json", ".jsonl", ".tar", ".zip", ".git")
"""Suffixes that never belong to a name on the hub."""


def load_hugging_face(argument: str, order: Order) -> Parts:
    """Reads a folder written by `save_to_disk`, Parquet files (`load_parquet`), or a data set from the hub.

    The columns are those of Parquet files: the feature Image, ClassLabel (or text, or whole numbers), `user`, `group`
    and `time`. The splits train and test are the parts; validation is the test part if there is no other. A single
    split is split by a keyed hash.
    """
    find_hugging_face(argument)
    path, where = expanded(argument), f"hf:{argument}"
    if path.exists() and not is_data_set(argument):
        return load_parquet(argument, order)
    import datasets  # pyright: ignore[reportMissingImports]

    try:
        loaded = datasets.load_from_disk(str(path)) if path.exists() else datasets.load_dataset(argument)
    except Exception as problem:  # of the file system, pyarrow, the network and the hub
        reason = " ".join(str(problem).split())[:150] or type(problem).__name__
        remedy = "correct the name, or write it again with save_to_disk"
        raise SfumatoError(f"{where} cannot be read ({reason})", remedy) from None
    return from_sets(loaded if isinstance(loaded, dict) else {None: loaded}, order, where)


def find_hugging_face(argument: str) -> None:
    """Refuses paths that do not exist, and sources whose library is not installed."""
    path = expanded(argument)
    if path.exists() and not is_data_set(argument):
        if path.is_dir() and not any(path.rglob("*.parquet")):
            remedy = f"correct hf:{argument}; image files are read by folder:PATH, and those of a metadata.csv by "
            remedy += "csv:PATH/metadata.csv --path-column file_name"
            raise SfumatoError(f"folder {str(path)!r} was not written by save_to_disk and holds no Parquet", remedy)
        find_parquet(argument)
        return
    if not path.exists() and (_NAME.fullmatch(argument) is None or argument.lower().endswith(_FILES)):
        raise SfumatoError(f"data set {str(path)!r} does not exist", "correct the path after hf:")
    if importlib.util.find_spec("datasets") is None:
        remedy = "pip install 'sfumato[hf]'"
        if not path.exists() and os.sep not in argument:
            remedy += ", or correct the path"
        raise SfumatoError("hf: needs Hugging Face's datasets, which is not installed", remedy)


def from_sets(sets: Mapping[Any, Any], order: Order, where: str) -> Parts:
    """Both parts of data sets.

    Args:
        sets: `datasets.Dataset`s by split name; None for a data set without one.
        where: name of the data sets in errors.
    """
    read, notes = dict.fromkeys(sets), ()
    if len(sets) > 1:
        read, notes = parts_read({name: part_in_name(name or "") for name in sets}, where)
    stored = TableRows([(name or where, sets[name]) for name in read])
    return load_files(listing(stored, [*read.values()], order, where), order, where=where, notes=notes)
