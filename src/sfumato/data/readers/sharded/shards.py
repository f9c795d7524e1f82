"""Shards, the files of a data set, and their parts."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from pathlib import Path

from sfumato._checks import SfumatoError, shortened
from sfumato._files import path_errors, refuse_special
from sfumato.data import paths
from sfumato.data.classes import notes_on_parts, part_in_name, test_part
from sfumato.data.paths import expanded

ROOM = 1 << 30
"""Bytes of memory for images of shards. Larger sets stay in their shards."""
LONGEST_LIST = 100_000
"""Largest number of shards in a range."""

_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")


def shards_of(argument: str, kind: str, suffix: str) -> list[Path]:
    """The shards of an argument: a file, all shards in a folder by name, or those that match a pattern.

    Args:
        argument: a path, optionally with `*`, `?`, `[...]`, `**` and braces: `train-{000..003}.tar`, `{train,test}`.
        kind: kind of the source, for errors.
        suffix: suffix of shards in a folder.
    """
    where = f"{kind}:{argument}"
    if "://" in argument:
        raise SfumatoError(f"{where} is a URL, but shards are read from the disk", "download them first")
    given = expanded(argument)
    if given.is_dir():
        found = _find_files(given, suffix)
        if not found:
            remedy = f"correct {where}"
            if _find_files(given, ".arrow"):
                remedy = "give a folder that Hugging Face's datasets saved as hf:PATH, or write dataset.to_parquet"
            raise SfumatoError(f"folder {str(given)!r} holds no file that ends with {suffix}", remedy)
        return found
    if given.exists():
        return [given]
    found = []
    for pattern in _expanded(str(given), where):
        matching = sorted(glob.glob(pattern, recursive=True)) if glob.has_magic(pattern) else [pattern]
        if not matching:
            raise SfumatoError(f"no file matches {pattern!r}", f"correct the path after {kind}:")
        found += matching
    for path in found:
        with path_errors(f"shard {path!r}", f"correct the path after {kind}:", "give the files in it"):
            refuse_special(paths.status(path), f"shard {path!r}")
    once = list(dict.fromkeys(map(Path, found)))
    if len(once) < len(found):
        raise SfumatoError(f"{where} names a shard twice", "name each once")
    return once


def parts_of(shards: Sequence[Path], where: str) -> tuple[list[Path], list[str | None], tuple[str, ...]]:
    """The shards to read, the part of each ("train" or "test"), and notes on a validation part.

    The part follows from a shard's name, or else from its folder's. All are None if all shards have the same part or
    none.
    """
    common = os.path.commonpath([path.parent for path in shards])
    found = [_part_name(path.relative_to(common)) for path in shards]
    names = set(found)
    if len(names) == 1:
        return list(shards), [None] * len(found), ()
    if None in names:
        odd = shards[found.index(None)]
        raise SfumatoError(
            f"the name of shard {str(odd)!r} does not name the part (train or test), as others do",
            "rename it, such as train-00000 or test-00000, or leave it out with a pattern",
        )
    if "train" not in names:
        raise SfumatoError(f"{where} has no train part by the names of its shards", "give the train part as well")
    read = {"train": "train", test_part(names): "test"}
    chosen = [(shard, read[name]) for shard, name in zip(shards, found, strict=True) if name in read]
    return [shard for shard, _ in chosen], [part for _, part in chosen], notes_on_parts(names, where)


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


def _expanded(pattern: str, where: str) -> list[str]:
    """Expands the braces of a pattern.

    >>> _expanded("a-{8..10}.{x,y}", "")
    ['a-8.x', 'a-8.y', 'a-9.x', 'a-9.y', 'a-10.x', 'a-10.y']
    >>> _expanded("{000..002}", "")
    ['000', '001', '002']
    """
    found = _BRACES.search(pattern)
    if found is None:
        return [pattern]
    numbers = _RANGE.fullmatch(found[1])
    if numbers is None:
        choices = found[1].split(",")
    else:
        first, last = map(int, numbers.groups())
        if not 0 <= last - first < LONGEST_LIST:
            raise SfumatoError(
                f"{shortened(where)} names {last - first + 1:,} shards",
                f"name 1 to {LONGEST_LIST:,}, in ascending order",
            )
        width = len(numbers[1]) if numbers[1].startswith("0") else 0
        choices = [f"{number:0{width}}" for number in range(first, last + 1)]
    rest = _expanded(pattern[found.end() :], where)
    return [pattern[: found.start()] + choice + other for choice in choices for other in rest]


def place_in(shard: str | os.PathLike[str], inner: object) -> str:
    """Name of a record within a shard.

    >>> place_in("a.parquet", "row 7")
    'a.parquet/row 7'
    """
    return f"{os.fspath(shard)}/{inner}"
