"""Data sets of Hugging Face's `datasets` as they are stored, whether mapped from the disk or in memory: as rows of
tables, like those of Parquet files. What a transform would make of a row is not looked at."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sfumato.data.images.decoding import read_bytes
from sfumato.data.paths import UnreadableError
from sfumato.data.readers.sharded.row_groups import Rows, bytes_in, check_same, image_column

if TYPE_CHECKING:
    import pyarrow as pa

GROUP = 100
"""Rows that are read at once."""


class TableRows(Rows):
    """The images in the rows of data sets, one after the other.

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
        """These columns of a group of rows."""
        file, number = self.groups[group]
        whole = [name.removesuffix(".bytes") if name not in self.schema.names else name for name in names]
        rows = self._sets[file].with_format("arrow", columns=list(dict.fromkeys(whole)))
        return rows[number * GROUP : (number + 1) * GROUP]

    def read(self, place: int) -> bytes:
        """The image in a row, as it is stored: in the table, or in the file that the table names."""
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
