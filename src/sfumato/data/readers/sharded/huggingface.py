"""hf:PATH - data sets of Hugging Face's `datasets`: saved on disk, as Parquet, or by name on the hub.

They are read as rows of stored tables, memory-mapped or in memory, like Parquet files. Transforms are ignored.
"""

from __future__ import annotations

import importlib.util
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sfumato._checks import SfumatoError
from sfumato.data.classes import notes_on_parts, part_in_name, test_part
from sfumato.data.declared import Order
from sfumato.data.identity.record_users import BY_CLASS
from sfumato.data.images.decoding import read_bytes
from sfumato.data.parts import Parts
from sfumato.data.paths import UnreadableError, expanded, is_data_set
from sfumato.data.readers.dicom import BY_PATIENT
from sfumato.data.readers.files import load_files
from sfumato.data.readers.sharded import columns
from sfumato.data.readers.sharded.columns import listing
from sfumato.data.readers.sharded.row_groups import ParquetRows, bytes_in, check_same, image_column

if TYPE_CHECKING:
    import pyarrow as pa


def from_hub(name: str, where: str) -> Any:
    """Loads a data set from the hub or its cache.

    Args:
        where: name of the data set in errors.
    """
    import datasets  # pyright: ignore[reportMissingImports]

    try:
        return datasets.load_dataset(name)
    except Exception as problem:  # of the file system, pyarrow, the network and the hub
        raise read_error(where, problem, "correct the name, or give a folder or Parquet") from None


def read_error(where: str, problem: Exception, remedy: str) -> SfumatoError:
    """The error for a data set that the library could not read."""
    reason = " ".join(str(problem).split())[:150] or type(problem).__name__
    return SfumatoError(f"{where} cannot be read ({reason})", remedy)


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
        self._sets = [one.with_format("arrow") for _, one in sets]
        self.groups, counts = [], [0]
        for number, (name, one) in enumerate(sets):
            schema = one.features.arrow_schema
            if number == 0:
                self.schema = schema
                self.image = image_column(schema, name)
            check_same(self.schema, schema, self.image, name)
            starts = range(0, len(one), GROUP)
            self.groups += [(number, group) for group in range(len(starts))]
            counts += [min(GROUP, len(one) - start) for start in starts]
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


UNDERSTOOD = (
    *("label_columns", "label_column", "user_column", "groups_from", "skip_unreadable"),
    *(f"user_from={BY_PATIENT}", f"user_from={BY_CLASS}"),
)
_NAME = re.compile(r"(?!.*(--|\.\.))[A-Za-z0-9_][\w.-]{0,95}(/[A-Za-z0-9_][\w.-]{0,95})?(?<![-.])", re.ASCII)
"""Name of a data set on the hub: `name` or `owner/name`."""
_FILES = (".parquet", ".arrow", ".csv", ".json", ".jsonl", ".tar", ".zip", ".git")
"""Suffixes that never belong to a name on the hub."""


def load(argument: str, order: Order) -> Parts:
    """Reads a folder written by `save_to_disk`, Parquet files (`columns.load`), or a data set from the hub.

    The columns are those of Parquet files: the feature Image, ClassLabel (or text, or whole numbers), `user`, `group`
    and `time`. The splits train and test are the parts; validation is the test part if there is no other. A single
    split is split by a keyed hash.
    """
    find(argument)
    path, where = expanded(argument), f"hf:{argument}"
    if path.exists() and not is_data_set(argument):
        return columns.load(argument, order)
    if not path.exists():
        found = from_hub(argument, where)
    else:
        import datasets  # pyright: ignore[reportMissingImports]

        try:
            found = datasets.load_from_disk(str(path))
        except Exception as problem:  # of the file system and pyarrow
            raise read_error(where, problem, "write it again with save_to_disk") from None
    return from_sets(found if isinstance(found, dict) else {None: found}, order, where)


def find(argument: str) -> None:
    """Refuses paths that do not exist, and sources whose library is not installed."""
    path = expanded(argument)
    if path.exists() and not is_data_set(argument):
        if path.is_dir() and not any(path.rglob("*.parquet")):
            remedy = f"correct hf:{argument}; image files are read by folder:PATH, and those of a metadata.csv by "
            remedy += "csv:PATH/metadata.csv --path-column file_name"
            raise SfumatoError(f"folder {str(path)!r} was not written by save_to_disk and holds no Parquet", remedy)
        columns.find(argument)
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
    chosen, parts, notes = _parts(sets, where)
    stored = TableRows([(name or where, sets[name]) for name in chosen])
    return load_files(listing(stored, parts, order, where), order, where=where, notes=notes)


def _parts(
    sets: Mapping[str | None, Any], where: str
) -> tuple[Sequence[str | None], list[str | None], tuple[str, ...]]:
    """The splits to read, the part of each (None to split it), and notes."""
    if len(sets) == 1:
        return [*sets], [None], ()
    known = {name: part_in_name(name or "") for name in sets}
    if odd := [name for name, part in known.items() if part is None]:
        raise SfumatoError(
            f"{where} has the split {odd[0]!r} beside others", "give the splits train and test, or one split of it"
        )
    if "train" not in known.values():
        raise SfumatoError(f"{where} has no split train", "give the train split as well")
    read = {"train": "train", test_part(known.values()): "test"}
    chosen = {name: read[part] for name, part in known.items() if part in read}
    return [*chosen], [*chosen.values()], notes_on_parts(known.values(), where)
