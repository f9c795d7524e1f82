"""hf:PATH - a data set of Hugging Face's `datasets`: as it lies on the disk, as Parquet, or by its name on the hub."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from sfumato._checks import SfumatoError
from sfumato.data import hub
from sfumato.data.declared import Order
from sfumato.data.parts import Parts
from sfumato.data.paths import expanded, is_data_set
from sfumato.data.readers import parquet
from sfumato.data.readers.dicom import BY_PATIENT
from sfumato.data.readers.files import load_files
from sfumato.data.readers.sharded.columns import listing
from sfumato.data.readers.sharded.tables import TableRows
from sfumato.data.readers.whose import BY_CLASS
from sfumato.data.subsets.part_names import notes, part_named, test_part

UNDERSTOOD = (
    *("label_columns", "label_column", "user_column", "skip_unreadable"),
    *(f"user_from={BY_PATIENT}", f"user_from={BY_CLASS}"),
)
_NAME = re.compile(r"(?!.*(--|\.\.))[A-Za-z0-9_][\w.-]{0,95}(/[A-Za-z0-9_][\w.-]{0,95})?(?<![-.])", re.ASCII)
"""A data set's on the hub: `name` or `owner/name`."""
_FILES = (".parquet", ".arrow", ".csv", ".json", ".jsonl", ".tar", ".zip", ".git")
"""With what no name ends that is meant for the hub."""


def load(argument: str, order: Order) -> Parts:
    """Read a folder that `save_to_disk` wrote, Parquet files (`parquet.load`), or what the hub has by this name.

    The columns are those of Parquet files: the feature Image, ClassLabel (or text, or whole numbers), `user`, `group`
    and `time`. Splits called train and test are the parts, validation the test part where there is no other; a single
    split is split by a keyed hash.
    """
    find(argument)
    path, where = expanded(argument), f"hf:{argument}"
    if path.exists() and not is_data_set(argument):
        return parquet.load(argument, order)
    if not path.exists():
        found = hub.load(argument, where)
    else:
        import datasets  # pyright: ignore[reportMissingImports]

        try:
            found = datasets.load_from_disk(str(path))
        except Exception as problem:  # of the file system and pyarrow
            raise hub.unread(where, problem, "write it again with save_to_disk") from None
    return of_sets(found if isinstance(found, dict) else {None: found}, order, where)


def find(argument: str) -> None:
    """Refuse what is not there, and what no library reads."""
    path = expanded(argument)
    if path.exists() and not is_data_set(argument):
        if path.is_dir() and not any(path.rglob("*.parquet")):
            remedy = f"correct hf:{argument}; image files are read by folder:PATH, and those of a metadata.csv by "
            remedy += "csv:PATH/metadata.csv --path-column file_name"
            raise SfumatoError(f"folder {str(path)!r} is not of save_to_disk, and holds no Parquet", remedy)
        parquet.find(argument)
        return
    if not path.exists() and (_NAME.fullmatch(argument) is None or argument.lower().endswith(_FILES)):
        raise SfumatoError(f"data set {str(path)!r} does not exist", "correct the path after hf:")
    if importlib.util.find_spec("datasets") is None:
        remedy = "pip install 'sfumato[hf]'"
        if not path.exists() and os.sep not in argument:
            remedy += ", or correct the path"
        raise SfumatoError("hf: needs Hugging Face's datasets, which is not installed", remedy)


def of_sets(sets: Mapping[Any, Any], order: Order, where: str) -> Parts:
    """Both parts of data sets.

    Args:
        sets: `datasets.Dataset`s by the names of their splits; None for one that has no name.
        where: what to call them in a refusal.
    """
    chosen, parts, notes = _parts(sets, where)
    stored = TableRows([(name or where, sets[name]) for name in chosen])
    return load_files(listing(stored, parts, order, where), order, where=where, notes=notes)


def _parts(
    sets: Mapping[str | None, Any], where: str
) -> tuple[Sequence[str | None], list[str | None], tuple[str, ...]]:
    """Which are read, of each its part, None to split it, and what to say of that."""
    if len(sets) == 1:
        return [*sets], [None], ()
    known = {name: part_named(name or "") for name in sets}
    if odd := [name for name, part in known.items() if part is None]:
        raise SfumatoError(
            f"{where} has the split {odd[0]!r} beside others",
            "give the splits train and test, or one split of it",
        )
    if "train" not in known.values():
        raise SfumatoError(f"{where} has no split train", "give the train split as well")
    read = {"train": "train", test_part(known.values()): "test"}
    chosen = {name: read[part] for name, part in known.items() if part in read}
    return [*chosen], [*chosen.values()], notes(known.values(), where)
