"""Shards, the files of a data set, and their parts.

Images in the row groups of Parquet files, and the schema of these files.

Parquet cannot read a single row, only its row group. So all images of a row group are read when one is needed, and the
last few groups stay in memory.
"""

from __future__ import annotations

import bisect
import glob
import json
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sfumato._checks import SfumatoError
from sfumato._files import path_errors, refuse_special
from sfumato.data import paths
from sfumato.data.classes import part_in_name, parts_read
from sfumato.data.paths import expanded, unreadable

if TYPE_CHECKING:
    import pyarrow as pa


ROOM = 1 << 30
"""Bytes of memory for images of shards. Larger sets stay in their shards."""


def shards_of(argument: str, kind: str, suffix: str) -> list[Path]:
    """The shards of an argument: a file, all shards in a folder by name, or those that match a pattern.

    Args:
        argument: a path, optionally with `*`, `?`, `[...]` and `**`.
        kind: kind of the source, for errors.
        suffix: suffix of shards in a folder.
    """
    place = expanded(argument)
    if place.is_dir():
        shards = _find_files(place, suffix)
        if not shards:
            remedy = f"correct the path after {kind}:"
            if _find_files(place, ".arrow"):
                remedy = "give a folder that Hugging Face's datasets saved as hf:PATH, or write dataset.to_parquet"
            raise SfumatoError(f"folder {str(place)!r} holds no file that ends with {suffix}", remedy)
        return shards
    if place.exists():
        return [place]
    shards = sorted(glob.glob(str(place), recursive=True)) if glob.has_magic(str(place)) else [str(place)]
    if not shards:
        raise SfumatoError(f"no file matches {str(place)!r}", f"correct the path after {kind}:")
    for path in shards:
        with path_errors(f"shard {path!r}", f"correct the path after {kind}:", "give the files in it"):
            refuse_special(paths.status(path), f"shard {path!r}")
    return list(map(Path, shards))


def parts_of(shards: Sequence[Path], where: str) -> tuple[list[Path], list[str | None], tuple[str, ...]]:
    """The shards to read, the part of each ("train" or "test"), and notes on a validation part.

    The part follows from a shard's name, or else from its folder's. All are None if all shards have the same part or
    none.
    """
    common = os.path.commonpath([path.parent for path in shards])
    names = [_part_name(path.relative_to(common)) for path in shards]
    if len(set(names)) == 1:
        return list(shards), [None] * len(names), ()
    read, notes = parts_read(dict(zip(shards, names, strict=True)), where)
    return [*read], [*read.values()], notes


def _part_name(path: Path) -> str | None:
    """The part in a shard's name, or else in its folder's."""
    for name in (path.stem, *reversed(path.parts[:-1])):
        if (part := part_in_name(name)) is not None:
            return part
    return None


def _find_files(folder: Path, suffix: str) -> list[Path]:
    """Files at any depth by name, except hidden ones."""
    return [path for path in sorted(folder.rglob(f"*{suffix}")) if not _is_hidden(path.relative_to(folder))]


def _is_hidden(path: Path) -> bool:
    return any(name.startswith((".", "_")) for name in path.parts)


def place_in(shard: str | os.PathLike[str], inner: object) -> str:
    """Name of a record within a shard.

    >>> place_in("a.parquet", "row 7")
    'a.parquet/row 7'
    """
    return f"{os.fspath(shard)}/{inner}"


IMAGE = "image"
CACHED = 256 << 20
"""Bytes of images that stay in memory. At least one group does."""
LARGEST_GROUP = 1 << 30
"""Bytes of images in a row group, which is read whole."""


class ParquetRows:
    """Images in the rows of consecutive Parquet files.

    Args:
        shards: paths of the files, all of which have the same columns.

    Attributes:
        schema: schema of the first file.
        starts: G + 1 numbers: the first row of each row group, counted over all files, and the number of rows.
        groups: for each row group, the index of its file in `shards`, and its index in the file.
        image: name of the image column.
    """

    room = ROOM

    def __init__(self, shards: Sequence[Path]):
        import pyarrow.parquet as pq

        self.shards = list(shards)
        self.groups: list[tuple[int, int]] = []
        counts, self._known = [0], []
        for number, shard in enumerate(self.shards):
            with arrow_errors(shard):
                metadata = pq.read_metadata(shard)
                schema = metadata.schema.to_arrow_schema()
            if number == 0:
                self.schema = schema
                self.image = image_column(schema, str(shard))
            check_same(self.schema, schema, self.image, str(shard))
            self._check_groups(metadata, shard)
            self.groups += [(number, group) for group in range(metadata.num_row_groups)]
            counts += [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
            self._known.append(metadata)
        self.starts = np.cumsum(counts).tolist()
        self._cache: OrderedDict[int, pa.Array] = OrderedDict()
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.shards,)

    def __len__(self) -> int:
        return self.starts[-1]

    def name(self, place: int) -> str:
        """The path of the file and the row in it, from 0."""
        group = self._group(place)
        file, number = self.groups[group]
        return place_in(self.shards[file], f"row {place - self.starts[group - number]}")

    def read(self, place: int) -> bytes:
        """The stored image of a row."""
        group = self._group(place)
        content = self._images(group)[place - self.starts[group]].as_py()
        if not content:
            raise unreadable(f"image {self.name(place)!r}", "has no bytes", "write the image itself, or remove the row")
        return content

    def table(self, group: int, names: Sequence[str]) -> pa.Table:
        """The named columns of a row group."""
        import pyarrow.parquet as pq

        file, number = self.groups[group]
        with arrow_errors(self.shards[file]), pq.ParquetFile(self.shards[file], metadata=self._known[file]) as opened:
            return opened.read_row_group(number, columns=list(names), use_threads=False)

    def _group(self, place: int) -> int:
        return bisect.bisect_right(self.starts, place) - 1

    def _images(self, group: int) -> pa.Array:
        """The images of a row group, binary (n,)."""
        with self._lock:
            if group in self._cache:
                self._cache.move_to_end(group)
                return self._cache[group]
            path = bytes_in(self.schema, self.image)
            column = self.table(group, [path])[self.image].combine_chunks()
            images = column.field("bytes") if path != self.image else column
            self._cache[group] = images
            while len(self._cache) > 1 and sum(cached.nbytes for cached in self._cache.values()) > CACHED:
                self._cache.popitem(last=False)
            return images

    def _check_groups(self, metadata: Any, shard: Path) -> None:
        place = bytes_in(self.schema, self.image)
        for group in range(metadata.num_row_groups):
            row_group = metadata.row_group(group)
            sizes = (row_group.column(number) for number in range(row_group.num_columns))
            size = sum(chunk.total_uncompressed_size for chunk in sizes if chunk.path_in_schema == place)
            if size > LARGEST_GROUP:
                raise SfumatoError(
                    f"a row group of {str(shard)!r} holds {size / 1e9:,.1f} GB of images, and must be read as a whole",
                    "write it with smaller ones, such as row_group_size=1000",
                )


@contextmanager
def arrow_errors(shard: Path) -> Iterator[None]:
    """Converts errors of pyarrow to errors that name the file."""
    import pyarrow as pa

    try:
        yield
    except (OSError, pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, pa.ArrowKeyError) as problem:
        reason = getattr(problem, "strerror", None) or str(problem).split("\n")[0][:100]
        raise SfumatoError(f"shard {str(shard)!r} cannot be read ({reason})", "write it again, or remove it") from None


def features_of(schema: pa.Schema) -> dict[str, dict[str, Any]]:
    """The metadata that `datasets` wrote about columns, by name: `_type`, and `names` for a class label."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return {name: about for name, about in features.items() if isinstance(about, dict)}
    except (ValueError, LookupError, TypeError, AttributeError):
        return {}


def image_column(schema: pa.Schema, shard: str) -> str:
    """The image column: the one named image, or the only one with the feature Image."""
    name = column_named(schema, IMAGE, "Image", shard)
    kind = schema.field(name).type
    place = bytes_in(schema, name)
    inner = kind if place == name else kind.field("bytes").type
    if str(inner) not in ("binary", "large_binary"):
        raise SfumatoError(
            f"column {name!r} of shard {shard!r} is {str(kind)[:60]}, and no bytes of image files",
            "write it as bytes, or by `datasets` with its feature Image",
        )
    return name


def bytes_in(schema: pa.Schema, image: str) -> str:
    """The path of the column with the images' bytes."""
    kind = schema.field(image).type
    inside = str(kind).startswith("struct") and kind.get_field_index("bytes") >= 0
    return f"{image}.bytes" if inside else image


def check_same(first: pa.Schema, schema: pa.Schema, image: str, shard: str) -> None:
    """Refuses a shard whose columns or class names differ from those of the first one."""
    features, others = features_of(first), features_of(schema)
    same = all(
        about.get("names") == others.get(name, {}).get("names") for name, about in features.items() if name != image
    )
    if not schema.equals(first) or not same:
        raise SfumatoError(
            f"shard {shard!r} has other columns or class names than the first one", "give shards of one data set"
        )


def column_named(schema: pa.Schema, name: str, feature: str, shard: str) -> str:
    """The column with this name, or the only one that `datasets` wrote with this feature."""
    if name in schema.names:
        return name
    alike = [column for column, about in features_of(schema).items() if about.get("_type") == feature]
    if len(alike) == 1 and alike[0] in schema.names:
        return alike[0]
    raise SfumatoError(
        f"shard {shard!r} has no column {name!r}; it holds {', '.join(schema.names)[:100]}",
        ("give its name as `label_column`, or " if name == "label" else "") + f"rename the column of {name}s to {name}",
    )
