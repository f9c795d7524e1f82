"""Pieces of a feature cache: safetensors files with the SHA-256 of their contents, read in parts."""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from sfumato._checks import SfumatoError, parse_json
from sfumato._files import write
from sfumato._systems import open_bytes, read_at
from sfumato.data.record_users import LENGTH, as_array
from sfumato.data.records import FileRecords, Records, TextRecords

_METADATA = "sfumato"
_TEXTS = ("users", "groups")
_LONGEST_HEADER = 1 << 20
_CHECKED = 4 << 20
MOST_LABELS = 1 << 16


def damaged(path: Path, problem: str) -> SfumatoError:
    """The error for a file of a cache that is not as it was written."""
    return SfumatoError(f"{path} {problem}", "delete it and repeat the command of sfumato features")


def write_piece(path: Path, features: Tensor, arrays: Mapping[str, np.ndarray], *, cache: str) -> None:
    """Writes a piece atomically.

    Args:
        features: (n, S, D), in the stored dtype.
        arrays: `labels`, `codes` and, if known, `users` and `groups`, as for `Cache.write`.
        cache: identity of its cache.
    """
    tensors = {"features": features}
    for name, array in arrays.items():
        stored = np.array(array)  # safetensors needs an array that owns its memory
        if name in _TEXTS:
            stored = np.char.encode(array, "utf-8").view(np.uint8).reshape(len(array), -1)
        tensors[name] = torch.from_numpy(stored)
    code = hashlib.sha256()
    for tensor in tensors.values():
        code.update(tensor.flatten().view(torch.uint8).numpy().data)
    about = {"cache": cache, "piece": path.name, "sha256": code.hexdigest()}
    write(path, save(tensors, metadata={_METADATA: json.dumps(about, sort_keys=True)}), private=True)


class CachedRecords:
    """One part of a cache: N records, whose features are read from disk on access.

    Args:
        pieces: in their order.
        which: positions in the part, to select some of its records.

    Attributes:
        labels: int64 (N,) or (N, L), as of `Records`.
        codes: uint8 (N, 32), the two codes of each record.
        users: text (N,), the code of each record's user (`user_codes`), if the source had users.
        groups: text (N,), the public group of each record's user, if known.
        subgroups, files: None: a cache stores neither groups for figures nor files.
    """

    subgroups = files = None

    def __init__(self, pieces: list[Piece], which: np.ndarray | None = None):
        self._pieces, self._which = pieces, which
        self._starts = np.cumsum([0, *(piece.shape[0] for piece in pieces)])
        empty = np.zeros(0, np.int64), as_array(())
        columns = [(piece.labels(), piece.codes()) for piece in pieces] or [empty]
        labels, codes = (np.concatenate(arrays) for arrays in zip(*columns, strict=True))
        self.labels, self.codes = (labels, codes) if which is None else (labels[which], codes[which])
        self.users, self.groups = (self._texts(name) for name in _TEXTS)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, ...]:
        """N, and S, D if there are any records."""
        return (len(self), *(self._pieces[0].shape[1:] if self._pieces else ()))

    @property
    def nbytes(self) -> int:
        """Bytes in memory: none."""
        return 0

    @property
    def sums(self) -> list[str]:
        """SHA-256 of the contents of each file of the part."""
        return [piece.sha256 for piece in self._pieces]

    def take(self, rows: np.ndarray | slice) -> np.ndarray:
        """Features float32 (n, S, D) of the records at these positions, all S stored versions of each."""
        return self._read(rows, self._memory)

    def buffered_take(self) -> Callable[[np.ndarray | slice], np.ndarray]:
        """`take` with two alternating buffers: a result is valid until the call after the next.

        Allocating fresh memory on every call would take as long as reading from a fast disk, since the system zeroes
        each page.
        """
        kept = deque([self._memory(0), self._memory(0)])

        def memory(records: int) -> np.ndarray:
            kept.rotate()
            if len(kept[0]) < records:
                kept[0] = self._memory(records)
            return kept[0][:records]

        return lambda rows: self._read(rows, memory)

    def _texts(self, name: str) -> np.ndarray | None:
        held = [piece.text(name) for piece in self._pieces if name in piece.shapes]
        if not held:
            return None
        if len(held) < len(self._pieces):
            (incomplete, *_) = (piece.path for piece in self._pieces if name not in piece.shapes)
            raise damaged(incomplete, f"lacks the {name} that other pieces hold")
        texts = np.concatenate(held)
        return texts if self._which is None else texts[self._which]

    def _memory(self, records: int) -> np.ndarray:
        return np.empty((records, self._pieces[0].record_bytes if self._pieces else 0), np.uint8)

    def _read(self, rows: np.ndarray | slice, memory_for: Callable[[int], np.ndarray]) -> np.ndarray:
        places = np.arange(*rows.indices(len(self))) if isinstance(rows, slice) else rows
        places = places if self._which is None else self._which[places]
        memory = memory_for(len(places))
        for piece, first, run in self._runs(places):
            self._pieces[piece].fill(memory[run], first)
        dtype, shape = self._pieces[0].dtype, self._pieces[0].shape[1:]
        return torch.from_numpy(memory.reshape(-1)).view(dtype).reshape(len(places), *shape).float().numpy()

    def select(self, which: np.ndarray) -> CachedRecords:
        """The records where the mask (N,) is true."""
        places = np.flatnonzero(which)
        return CachedRecords(self._pieces, places if self._which is None else self._which[places])

    def joined(self, other: CachedRecords) -> CachedRecords:
        """These records and those of another part of the same cache."""
        first, second = (
            np.arange(len(records)) if records._which is None else records._which for records in (self, other)
        )
        return CachedRecords(self._pieces + other._pieces, np.concatenate([first, self._starts[-1] + second]))

    def _runs(self, places: np.ndarray) -> Iterator[tuple[int, int, slice]]:
        """Runs of requested records that are adjacent on disk: piece, first record in it, and target slice."""
        pieces = np.searchsorted(self._starts, places, side="right") - 1
        cuts = np.flatnonzero((np.diff(places) != 1) | (np.diff(pieces) != 0)) + 1
        for start, stop in pairwise([0, *cuts.tolist(), len(places)]):
            if stop > start:
                piece = int(pieces[start])
                yield piece, int(places[start] - self._starts[piece]), slice(start, stop)


Part = Records | FileRecords | TextRecords | CachedRecords


@dataclass(frozen=True, kw_only=True)
class Piece:
    """The layout of a piece's file."""

    path: Path
    dtype: torch.dtype
    at: Mapping[str, int]
    shapes: Mapping[str, tuple[int, ...]]
    sha256: str

    @property
    def shape(self) -> tuple[int, ...]:
        """N, S, D."""
        return self.shapes["features"]

    @property
    def record_bytes(self) -> int:
        return self.shape[1] * self.shape[2] * self.dtype.itemsize

    @classmethod
    def read(cls, path: Path, *, cache: str, dtype: torch.dtype, shape: tuple[int, ...]) -> Piece:
        """The layout of a file that `write_piece` wrote.

        Args:
            cache: identity of the cache that it must belong to.
            dtype, shape: of its features.
        """
        try:
            with path.open("rb") as file:
                (length,) = struct.unpack("<Q", file.read(8))
                if length > _LONGEST_HEADER:
                    raise ValueError("no safetensors header")
                header = parse_json(file.read(length))
                size = file.seek(0, os.SEEK_END)
            held = ("features", "labels", "codes", *(name for name in _TEXTS if name in header))
            places = {name: header[name]["data_offsets"] for name in held}
            end = 8 + length + max(stop for _, stop in places.values())
            shapes = {name: tuple(header[name]["shape"]) for name in held}
            several = shapes["labels"][1:]
            if len(several) > 1 or any(type(width) is not int or not 0 < width <= MOST_LABELS for width in several):
                raise ValueError("labels of another shape")
            fits = end == size and shapes["features"] == shape and shapes["codes"][1] == 2 * LENGTH
            fits = fits and all(form[0] == shape[0] for form in shapes.values())
            fits = fits and all(len(shapes[name]) == 2 for name in held[2:])
            metadata = parse_json(header["__metadata__"][_METADATA])
            sha256 = str(metadata.pop("sha256"))
        except (OSError, ValueError, LookupError, TypeError, struct.error) as error:
            raise damaged(path, f"is damaged ({error!r})") from None
        if metadata != {"cache": cache, "piece": path.name}:
            raise damaged(path, "belongs to another cache")
        if not fits:
            raise damaged(path, "is truncated or of another shape")
        at = {name: 8 + length + start for name, (start, _) in places.items()}
        return cls(path=path, dtype=dtype, at=at, shapes=shapes, sha256=sha256)

    def check(self) -> None:
        """Refuses a file whose contents are not those that were written."""
        code = hashlib.sha256()
        rows = max(1, _CHECKED // self.record_bytes)
        memory = np.empty((rows, self.record_bytes), np.uint8)
        for first in range(0, self.shape[0], rows):
            block = memory[: min(rows, self.shape[0] - first)]
            self.fill(block, first)
            code.update(block.data)
        for name in self.shapes:
            if name != "features":
                code.update(self._array(name).data)
        if code.hexdigest() != self.sha256:
            raise damaged(self.path, "holds other numbers than were written")

    def labels(self) -> np.ndarray:
        """int64 (n,) or (n, L)."""
        return self._array("labels").view(np.int64).reshape(self.shapes["labels"])

    def codes(self) -> np.ndarray:
        """uint8 (n, 32)."""
        return self._array("codes").reshape(self.shapes["codes"])

    def text(self, name: str) -> np.ndarray:
        """Text (n,): "users" or "groups"."""
        return np.char.decode(self._array(name).view(f"S{self.shapes[name][1]}"), "utf-8")

    def _array(self, name: str) -> np.ndarray:
        """The bytes of an array, uint8."""
        memory = np.empty(math.prod(self.shapes[name]) * (8 if name == "labels" else 1), np.uint8)
        self._fill(memory, self.at[name])
        return memory

    def fill(self, memory: np.ndarray, first: int) -> None:
        """Fills the buffer uint8 (n, bytes) with n records, starting at record `first`."""
        self._fill(memory.reshape(-1), self.at["features"] + first * self.record_bytes)

    def _fill(self, memory: np.ndarray, offset: int) -> None:
        # Not memory-mapped: mapped pages would count as memory of the process.
        descriptor = open_bytes(self.path, os.O_RDONLY)
        try:
            rest = memory.data
            while rest:
                count = read_at(descriptor, rest, offset)
                if not count:
                    raise damaged(self.path, "is truncated")
                rest, offset = rest[count:], offset + count
        finally:
            os.close(descriptor)
