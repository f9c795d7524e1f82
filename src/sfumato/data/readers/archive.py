"""The arrays in a NumPy archive, read by their names: nothing in the file is run, and none that memory cannot hold."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.lib import format

from sfumato._checks import SfumatoError
from sfumato._files import refuse_special
from sfumato._memory import memory_limit
from sfumato.data import paths
from sfumato.data.subsets.filtered import MARK

Wanted = Callable[[dict[str, str], str], tuple[tuple[str, ...], dict[str, str]]]


def read(file: Path, where: str, wanted_of: Wanted) -> tuple[dict[str, np.ndarray], bool]:
    """The arrays that are looked at, by their names; and whether the set was filtered by looking at private data.

    Args:
        where: what to call the archive in a refusal.
        wanted_of: which arrays these are, by the names of the archive's members and what it is called.
    """
    with _opened(file, where) as archive:
        members = {name.removesuffix(".npy"): name for name in archive.namelist()}
        wanted, beside = wanted_of(members, where)
        chosen = {name: members[name] for name in (*wanted, "classes") if name in members} | beside
        _check_sizes(archive, chosen, where)
        return {name: _array(archive, member) for name, member in chosen.items()}, MARK in members


@contextmanager
def _opened(file: Path, where: str) -> Iterator[zipfile.ZipFile]:
    """The archive; what goes wrong meanwhile is refused by name."""
    with paths.reading(where, "correct the path after npz:", "give the .npz file, or use folder:"):
        refuse_special(paths.status(file), where)
        with file.open("rb") as stream:
            if not zipfile.is_zipfile(stream):
                raise SfumatoError(f"{where} is not an npz archive, or is cut short", "write it with numpy.savez")
            try:
                with zipfile.ZipFile(stream) as archive:
                    yield archive
            except SfumatoError:
                raise
            except MemoryError:
                problem = f"{where} unpacks to more than the memory that is free"
                raise SfumatoError(problem, "free some, or save less") from None
            except (
                Exception
            ):  # zipfile, its decoders and the reading of headers raise a dozen types for broken archives
                raise SfumatoError(f"{where} is broken", "write it again with numpy.savez") from None


def _check_sizes(archive: zipfile.ZipFile, members: dict[str, str], where: str) -> None:
    """Refuse arrays that memory cannot hold by what their headers say, before any is unpacked."""
    sizes = {}
    for name, member in members.items():
        with archive.open(member) as stream:
            old = format.read_magic(stream) == (1, 0)
            shape, _, dtype = (format.read_array_header_1_0 if old else format.read_array_header_2_0)(stream)
            if dtype.hasobject:
                raise SfumatoError(
                    f"{where} holds pickled objects, which can run code when they are read",
                    "save plain arrays: images as uint8, labels as integers, classes as text",
                )
            sizes[name] = math.prod(shape) * dtype.itemsize
            held = archive.getinfo(member).file_size - stream.tell()
        if sizes[name] <= memory_limit() and sizes[name] != held:
            raise ValueError("the header speaks of another array")
    if sum(sizes.values()) > memory_limit():
        largest = max(sizes, key=sizes.__getitem__)
        raise SfumatoError(
            f"{where} unpacks to more than the memory that there is, {largest} alone to {sizes[largest] / 1e9:,.1f} GB",
            "save fewer or smaller images, or as files, which are read when they are wanted (folder: or csv:)",
        )


def _array(archive: zipfile.ZipFile, member: str) -> np.ndarray:
    with archive.open(member) as stream:
        return format.read_array(stream, allow_pickle=False)
