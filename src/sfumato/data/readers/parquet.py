"""parquet:PATH - images in the rows of Parquet files, as Hugging Face's `datasets` writes them; read by pyarrow."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from sfumato._checks import SfumatoError
from sfumato.data.declared import Order
from sfumato.data.identity.owners import BY_CLASS
from sfumato.data.parts import Parts
from sfumato.data.readers.dicom import BY_PATIENT
from sfumato.data.readers.files import load_files
from sfumato.data.readers.sharded.columns import listing
from sfumato.data.readers.sharded.members import parts_of, shards_of
from sfumato.data.readers.sharded.row_groups import Rows

UNDERSTOOD = (
    *("label_columns", "label_column", "user_column", "skip_unreadable"),
    *(f"user_from={BY_PATIENT}", f"user_from={BY_CLASS}"),
)
SUFFIX = ".parquet"


def load(path: str, order: Order) -> Parts:
    """Read a Parquet file, all in a folder, or those that match a pattern, in the order of their names.

    Columns: `image` (or the only one that `datasets` calls an image): bytes of an image file, alone or in a struct
    {bytes, path}; `label` (or the only class label): whole numbers, with names where `datasets` wrote such, or text;
    `user`, `group` and `time` as in a table; with `label_columns` columns of 0 and 1 in place of `label`. Files or
    folders called train and test (or validation, `part_names`) are the parts; else a keyed hash decides, of the user
    where that is known, else of the image's bytes. Other columns are not looked at.
    """
    where = f"parquet:{path}"
    shards, parts, notes = parts_of(find(path), where)
    stored = Rows(shards)
    return load_files(listing(stored, parts, order, where), order, where=where, notes=notes)


def find(path: str) -> list[Path]:
    """The files that are meant; refused where the library that reads them is not installed."""
    if importlib.util.find_spec("pyarrow") is None:
        raise SfumatoError("parquet: needs pyarrow, which is not installed", "pip install 'sfumato[parquet]'")
    return shards_of(path, "parquet", SUFFIX)
