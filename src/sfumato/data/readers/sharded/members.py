"""The members of tar files, by the convention of WebDataset: those that share a key are one record."""

from __future__ import annotations

import os
import tarfile
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from sfumato._checks import SfumatoError
from sfumato.data import paths
from sfumato.data.classes import refuse_unwritable
from sfumato.data.images import formats
from sfumato.data.images.decoding import LARGEST_FILE
from sfumato.data.paths import UnreadableError
from sfumato.data.readers.sharded.names import ROOM, place_in
from sfumato.data.stored import Column

_LARGEST_BESIDE = 1 << 20


class Members:
    """Images within tar files.

    Args:
        shards: paths of the files.
    """

    room = ROOM

    def __init__(self, shards: Sequence[Path]):
        self.shards = list(shards)
        self._keys = Column()
        self._shard, self._offset, self._size = array("l"), array("q"), array("q")

    def add(self, shard: int, sample: Sample) -> None:
        """One more image: which shard it is in, and where."""
        member = sample.member
        self._keys.append(sample.key)
        self._shard.append(shard)
        self._offset.append(member.offset_data)
        self._size.append(member.size)

    def __len__(self) -> int:
        return len(self._keys)

    def name(self, place: int) -> str:
        """The tar file's path and the record's in it."""
        return place_in(self.shards[self._shard[place]], self._keys[place])

    def read(self, place: int) -> bytes:
        """The image, as it is stored."""
        shard, size = self.shards[self._shard[place]], self._size[place]
        if not size:
            raise UnreadableError(f"image {self.name(place)!r} is empty", "replace it, or take it out")
        with paths.reading(f"shard {str(shard)!r}", "put it back where it was"), open(shard, "rb", buffering=0) as file:
            content = os.pread(file.fileno(), size, self._offset[place])
        if len(content) < size:
            raise SfumatoError(f"shard {str(shard)!r} is cut short", "copy it again")
        return content


class Sample:
    """One record in a tar file: its members by what follows the first dot of their names."""

    def __init__(self, key: str, shard: Path, archive: tarfile.TarFile):
        self.key, self.name = key, place_in(shard, key)
        self._archive = archive
        self._members: dict[str, tarfile.TarInfo] = {}

    def add(self, extension: str, member: tarfile.TarInfo) -> None:
        """One more of its members."""
        if extension in self._members:
            raise SfumatoError(f"record {self.name!r} has two members .{extension}", "give each record its own name")
        self._members[extension] = member

    @property
    def image(self) -> str | None:
        """The extension of its image, if it has one."""
        found = [extension for extension in self._members if f".{extension}" in formats.endings()]
        if len(found) > 1:
            raise SfumatoError(f"record {self.name!r} has images .{' and .'.join(found)}", "keep one of them")
        return found[0] if found else None

    @property
    def member(self) -> tarfile.TarInfo:
        """Its image's place in the tar file."""
        image = self.image
        if image is None:
            raise SfumatoError(f"record {self.name!r} has no image", "add one, or take the record out")
        member = self._members[image]
        if member.size > LARGEST_FILE:
            raise SfumatoError(
                f"image {self.name!r} has {member.size / 1e9:,.1f} GB", "make it smaller, or take it out"
            )
        return member

    def text(self, extension: str) -> str | None:
        """What one of its members says, if it has such a one."""
        member = self._members.get(extension)
        if member is None:
            return None
        if member.size > _LARGEST_BESIDE:
            raise SfumatoError(f"{self.name}.{extension} has {member.size:,} bytes", "take out what is no label")
        stream = self._archive.extractfile(member)
        try:
            return "" if stream is None else stream.read().decode("utf-8").strip()
        except UnicodeDecodeError:
            raise SfumatoError(f"{self.name}.{extension} is not UTF-8 text", "write it as text") from None


@contextmanager
def opened(shard: Path) -> Iterator[tarfile.TarFile]:
    where = f"shard {str(shard)!r}"
    with paths.reading(where, "correct the path after webdataset:", "give the files in it"):
        try:
            with tarfile.open(shard, "r:") as archive:
                yield archive
        except tarfile.TarError:
            raise SfumatoError(
                f"{where} is no whole tar file",
                "write it again; unpack what is compressed, since single images are read",
            ) from None


def samples(archive: tarfile.TarFile, shard: Path) -> Iterator[Sample]:
    """The records of a tar file, one after the other."""
    sample, size = None, shard.stat().st_size
    while (member := archive.next()) is not None:
        archive.members = []  # pyright: ignore[reportAttributeAccessIssue]  # it would keep every one
        folder, name = os.path.split(member.name)
        stem, dot, extension = name.partition(".")
        if not member.isreg() or not stem or not dot:
            continue
        if member.offset_data + member.size > size:
            raise SfumatoError(f"shard {str(shard)!r} is cut short", "copy it again")
        key = os.path.join(folder, stem)
        if sample is None or key != sample.key:
            if sample is not None:
                yield sample
            refuse_unwritable(key, "record", longest=None)
            sample = Sample(key, shard, archive)
        sample.add(extension.lower(), member)
    with open(shard, "rb") as file:  # `tarfile` takes whatever is no header for the end
        if os.pread(file.fileno(), tarfile.BLOCKSIZE, archive.offset) != tarfile.NUL * tarfile.BLOCKSIZE:
            raise SfumatoError(f"shard {str(shard)!r} is cut short", "copy it again")
    if sample is not None:
        yield sample
