"""Shards: the files that a set of records is spread over, and which part each is of by its name."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from pathlib import Path

from sfumato._checks import SfumatoError, shortened
from sfumato._files import refuse_special
from sfumato.data import paths
from sfumato.data.paths import expanded
from sfumato.data.subsets.part_names import notes, part_named, test_part

ROOM = 1 << 30
"""Bytes that images of shards may take in memory; more of them stay in their shards, however many they are."""
LONGEST_LIST = 100_000
"""Shards."""

_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_OTHERS = {
    ".arrow": "give a folder that Hugging Face's datasets saved as hf:PATH, or write Parquet by dataset.to_parquet",
    ".tar.gz": "unpack them to .tar, since single images are read",
    ".tgz": "unpack them to .tar, since single images are read",
}
"""What to do with files that are often met where shards are meant."""


def shards_of(argument: str, kind: str, suffix: str) -> list[Path]:
    """The shards that are meant: a file, all in a folder by name, or those that match a pattern.

    Args:
        argument: a path, in which `*`, `?`, `[...]`, `**` and braces may stand: `train-{000..003}.tar`, `{train,test}`.
        kind: of the source, for refusals.
        suffix: of shards in a folder.
    """
    where = f"{kind}:{argument}"
    if "://" in argument:
        raise SfumatoError(f"{where} is an address, and shards are read from the disk", "download them first")
    given = expanded(argument)
    if given.is_dir():
        found = _within(given, suffix)
        if not found:
            others = next((other for other in _OTHERS if _within(given, other)), None)
            met = f", but some with {others}" if others else ""
            remedy = _OTHERS[others] if others else f"correct {where}"
            raise SfumatoError(f"folder {str(given)!r} holds no file that ends with {suffix}{met}", remedy)
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
        with paths.reading(f"shard {path!r}", f"correct the path after {kind}:", "give the files in it"):
            refuse_special(paths.status(path), f"shard {path!r}")
    once = list(dict.fromkeys(map(Path, found)))
    if len(once) < len(found):
        raise SfumatoError(f"{where} names a shard twice", "name each once")
    return once


def parts_of(shards: Sequence[Path], where: str) -> tuple[list[Path], list[str | None], tuple[str, ...]]:
    """The shards that are read, of each "train" or "test", and what the owner is told of a validation part.

    A shard's name says which part it is of, else its folder's. All are None where all are of one part or of none.
    """
    common = os.path.commonpath([path.parent for path in shards])
    found = [_named(path.relative_to(common)) for path in shards]
    names = set(found)
    if len(names) == 1:
        return list(shards), [None] * len(found), ()
    if None in names:
        odd = shards[found.index(None)]
        raise SfumatoError(
            f"the name of shard {str(odd)!r} does not say whether it is of the train or the test part, as others do",
            "call it like train-00000 or test-00000, or leave it out by a pattern",
        )
    if "train" not in names:
        raise SfumatoError(f"{where} has no train part, by the names of its shards", "give the train part as well")
    read = {"train": "train", test_part(names): "test"}
    chosen = [(shard, read[name]) for shard, name in zip(shards, found, strict=True) if name in read]
    return [shard for shard, _ in chosen], [part for _, part in chosen], notes(names, where)


def _named(path: Path) -> str | None:
    """The part that a shard's own name speaks of, else its folder's."""
    for name in (path.stem, *reversed(path.parts[:-1])):
        if (part := part_named(name)) is not None:
            return part
    return None


def _within(folder: Path, suffix: str) -> list[Path]:
    """Files at any depth by name, but for hidden ones."""
    return [path for path in sorted(folder.rglob(f"*{suffix}")) if not _hidden(path.relative_to(folder))]


def _hidden(path: Path) -> bool:
    return any(name.startswith((".", "_")) for name in path.parts)


def _expanded(pattern: str, where: str) -> list[str]:
    """The patterns that one with braces stands for.

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
                f"{shortened(where)} names {last - first + 1:,} shards", f"name 1 to {LONGEST_LIST:,}, in rising order"
            )
        width = len(numbers[1]) if numbers[1].startswith("0") else 0
        choices = [f"{number:0{width}}" for number in range(first, last + 1)]
    rest = _expanded(pattern[found.end() :], where)
    return [pattern[: found.start()] + choice + other for choice in choices for other in rest]


def place_in(shard: str | os.PathLike[str], inner: object) -> str:
    """What to call a record within a shard.

    >>> place_in("a.parquet", "row 7")
    'a.parquet/row 7'
    """
    return f"{os.fspath(shard)}/{inner}"
