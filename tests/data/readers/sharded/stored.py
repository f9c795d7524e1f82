"""Made-up records, and the shards that they are written into."""

import io
import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

NAMES = ("cat", "dog")


class Record(NamedTuple):
    """An image file, a class and whose it is."""

    content: bytes
    label: int
    user: str


def records(count: int, *, side: int = 8, users: int = 7) -> list[Record]:
    generator = np.random.default_rng(0)
    made = []
    for number in range(count):
        stream = io.BytesIO()
        Image.fromarray(generator.integers(0, 256, (side, side), np.uint8)).save(stream, "PNG")
        made.append(Record(stream.getvalue(), number % 2, f"user {number % users}"))
    return made


def as_table(some: Sequence[Record], *, users: bool = True, named: bool = True, **columns: Any) -> pa.Table:
    """As `datasets` has it in memory, with what it writes of the features."""
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    arrays: dict[str, Any] = {
        "image": pa.array([{"bytes": one.content, "path": None} for one in some], image),
        "label": pa.array([one.label for one in some], pa.int64()),
    }
    if users:
        arrays["user"] = pa.array([one.user for one in some], pa.string())
    features = {"image": {"_type": "Image"}, "label": {"names": list(NAMES), "_type": "ClassLabel"}}
    told = {"huggingface": json.dumps({"info": {"features": features}})} if named else {}
    return pa.table({**arrays, **columns}).replace_schema_metadata(told)


def write_parquet(path: Path, table: pa.Table, *, rows: int = 4) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=rows)


def write(folder: Path, some: Sequence[Record], cuts: Sequence[int], *, rows: int = 4) -> str:
    """The records in shards that are cut there: the source's spelling."""
    edges = [0, *sorted({cut % len(some) for cut in cuts} - {0}), len(some)]
    for number, (start, stop) in enumerate(pairwise(edges)):
        write_parquet(folder / f"{number:05d}.parquet", as_table(some[start:stop]), rows=rows)
    return f"parquet:{folder}"
