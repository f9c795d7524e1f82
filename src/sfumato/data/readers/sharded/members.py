"""Shards, the files of a data set, and their parts; and records in tar files in the format of WebDataset, where members
with the same key form one record."""

from __future__ import annotations

import glob
import os
import re
import tarfile
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from sfumato._checks import SfumatoError, shortened
from sfumato._files import refuse_special
from sfumato.data import paths
from sfumato.data.classes import notes_on_parts, part_in_name, refuse_unwritable, test_part
from sfumato.data.images import decoding
from sfumato.data.images.decoding import LARGEST_FILE
from sfumato.data.paths import UnreadableError, expanded
from sfumato.data.stored import TextBuffer

ROOM = 1 << 30
"""Bytes of memory for images of shards. Larger sets stay in their shards."""
LONGEST_LIST = 100_000
"""Largest number of shards in a range."""

_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_OTHERS = {
    ".arrow": "give a folder that Hugging Face's datasets saved as hf:PATH, or write Parquet by dataset.to_parquet",
    ".tar.gz": "unpack them to .tar: images are read one by one",
    ".tgz": "unpack them to .tar: images are read one by one",
}
"""Remedies for files that are often given instead of shards."""


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
            others = next((other for other in _OTHERS if _find_files(given, other)), None)
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
        with paths.path_errors(f"shard {path!r}", f"correct the path after {kind}:", "give the files in it"):
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


_LARGEST_BESIDE = 1 << 20


class Members:
    """Images in tar files.

    Args:
        shards: paths of the files.
    """

    room = ROOM

    def __init__(self, shards: Sequence[Path]):
        self.shards = list(shards)
        self._keys = TextBuffer()
        self._shard, self._offset, self._size = array("l"), array("q"), array("q")

    def add(self, shard: int, sample: Sample) -> None:
        """Adds an image, with its shard and place."""
        member = sample.member
        self._keys.append(sample.key)
        self._shard.append(shard)
        self._offset.append(member.offset_data)
        self._size.append(member.size)

    def __len__(self) -> int:
        return len(self._keys)

    def name(self, place: int) -> str:
        """The path of the tar file and of the record in it."""
        return place_in(self.shards[self._shard[place]], self._keys[place])

    def read(self, place: int) -> bytes:
        """The stored image."""
        shard, size = self.shards[self._shard[place]], self._size[place]
        if not size:
            raise UnreadableError(f"image {self.name(place)!r} is empty", "replace it, or remove it")
        with (
            paths.path_errors(f"shard {str(shard)!r}", "put it back where it was"),
            open(shard, "rb", buffering=0) as file,
        ):
            content = os.pread(file.fileno(), size, self._offset[place])
        if len(content) < size:
            raise SfumatoError(f"shard {str(shard)!r} is truncated", "copy it again")
        return content


class Sample:
    """One record in a tar file: its members by extension, the text after the first dot of the name."""

    def __init__(self, key: str, shard: Path, archive: tarfile.TarFile):
        self.key, self.name = key, place_in(shard, key)
        self._archive = archive
        self._members: dict[str, tarfile.TarInfo] = {}

    def add(self, extension: str, member: tarfile.TarInfo) -> None:
        """Adds a member."""
        if extension in self._members:
            raise SfumatoError(f"record {self.name!r} has two members .{extension}", "give each record its own name")
        self._members[extension] = member

    @property
    def image(self) -> str | None:
        """The extension of the image, if there is one."""
        found = [extension for extension in self._members if f".{extension}" in decoding.image_suffixes()]
        if len(found) > 1:
            raise SfumatoError(f"record {self.name!r} has images .{' and .'.join(found)}", "keep one of them")
        return found[0] if found else None

    @property
    def member(self) -> tarfile.TarInfo:
        """The tar member of the image."""
        image = self.image
        if image is None:
            raise SfumatoError(f"record {self.name!r} has no image", "add one, or remove the record")
        member = self._members[image]
        if member.size > LARGEST_FILE:
            raise SfumatoError(f"image {self.name!r} has {member.size / 1e9:,.1f} GB", "make it smaller, or remove it")
        return member

    def text(self, extension: str) -> str | None:
        """The text of the member with this extension, if there is one."""
        member = self._members.get(extension)
        if member is None:
            return None
        if member.size > _LARGEST_BESIDE:
            raise SfumatoError(f"{self.name}.{extension} has {member.size:,} bytes", "remove what is not a label")
        stream = self._archive.extractfile(member)
        try:
            return "" if stream is None else stream.read().decode("utf-8").strip()
        except UnicodeDecodeError:
            raise SfumatoError(f"{self.name}.{extension} is not UTF-8 text", "write it as text") from None


@contextmanager
def opened(shard: Path) -> Iterator[tarfile.TarFile]:
    where = f"shard {str(shard)!r}"
    with paths.path_errors(where, "correct the path after webdataset:", "give the files in it"):
        try:
            with tarfile.open(shard, "r:") as archive:
                yield archive
        except tarfile.TarError:
            raise SfumatoError(
                f"{where} is not a complete tar file",
                "write it again, without compression: images are read one by one",
            ) from None


def samples(archive: tarfile.TarFile, shard: Path) -> Iterator[Sample]:
    """Yields the records of a tar file."""
    sample, size = None, shard.stat().st_size
    while (member := archive.next()) is not None:
        archive.members = []  # pyright: ignore[reportAttributeAccessIssue]  # it would keep all members
        folder, name = os.path.split(member.name)
        stem, dot, extension = name.partition(".")
        if not member.isreg() or not stem or not dot:
            continue
        if member.offset_data + member.size > size:
            raise SfumatoError(f"shard {str(shard)!r} is truncated", "copy it again")
        key = os.path.join(folder, stem)
        if sample is None or key != sample.key:
            if sample is not None:
                yield sample
            refuse_unwritable(key, "record", longest=None)
            sample = Sample(key, shard, archive)
        sample.add(extension.lower(), member)
    with open(shard, "rb") as file:  # `tarfile` treats an invalid header as the end
        if os.pread(file.fileno(), tarfile.BLOCKSIZE, archive.offset) != tarfile.NUL * tarfile.BLOCKSIZE:
            raise SfumatoError(f"shard {str(shard)!r} is truncated", "copy it again")
    if sample is not None:
        yield sample
