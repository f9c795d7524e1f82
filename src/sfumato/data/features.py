"""features:PATH - features of every record from a fixed public backbone, computed once and stored on disk.

A cache is a folder. `features.json` describes its contents. Pieces `train-00000.safetensors`, ..., `test-00000...` hold
`features` (n, K, D), or (n, K + 1, D) if the centre crop of each training image precedes its random crops, `labels`
(n,) and `codes` (n, 32). If the source has users, pieces also hold `users`, as codes, and `groups`, both uint8 (n, L),
UTF-8 text. Pieces are written atomically, so a cache is complete when all pieces exist, and an interrupted one resumes
with the first missing piece.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sfumato._checks import SfumatoError, nested_differences, one_of, positive_integer, shortened
from sfumato._files import read_json, write
from sfumato.data.declared import TEST_FRACTION, OnProgress
from sfumato.data.paths import FEATURES, expanded, is_cache
from sfumato.data.pieces import CachedRecords, Piece, damaged, write_piece

BACKBONE = "backbone.safetensors"
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
PARTS = ("train", "test")
PLACES = "places"
"""Where the records were read from. It is not part of the identity: images may be moved."""
SOURCE_FACTS = frozenset(("kind", "fingerprint", "material", "pixels", "classes", "examples", "read", "public")) | {
    *("size", "channels", "size_rule", "filtered", "parted", PLACES)
}
USER_FACTS = frozenset({"users", "users_read", "user_from"})
"""Facts about the source that a cache stores only if the source has users."""
PIECE_BYTES, PIECE_ROWS = 64 << 20, 1024  # seconds to minutes of work for a network on a CPU
_FORMAT = 4


@dataclass(frozen=True, kw_only=True)
class Contents:
    """The contents of a cache: everything that determines its numbers. A cache resumes only with the same contents.

    Args:
        width: D, the length of a feature vector.
        counts: records in the parts "train" and "test".
        source: facts about the records: the `SOURCE_FACTS`.
        views: K, number of views of each training record; test records have one.
        middle: whether the centre crop of each training image is stored before its views, and used for scoring;
            otherwise the first view is used for scoring.
        dtype: "float32", "float16" or "bfloat16".
        rows: records in a piece, except in the last one of a part.
        backbone: how to rebuild the network; None for features from elsewhere.
        digest: SHA-256 of the backbone's function and weights; None without a backbone.
        weights: SHA-256 of the weights alone, which are stored with the features.
        origins: origin of the backbone's weights, as in statements.
        trained_on: `Source.stored_digest` of the data they were trained on without privacy, if known.
        transform: preparation of images for the backbone, from `Transform.to_dict`.
        crop: how views are cropped from a training image, in words and numbers.
        test_fraction: share of the test part, if the keyed hash split the data.
    """

    width: int
    counts: Mapping[str, int]
    source: Mapping[str, Any]
    views: int = 1
    middle: bool = False
    dtype: str = "float32"
    rows: int = 0
    backbone: Mapping[str, Any] | None = None
    digest: str | None = None
    weights: str | None = None
    origins: tuple[str, ...] | list[str] = ("unknown",)
    trained_on: tuple[str, ...] | list[str] = ()
    transform: Mapping[str, Any] | None = None
    crop: Mapping[str, Any] = field(default_factory=dict)
    test_fraction: float = TEST_FRACTION

    def __post_init__(self) -> None:
        positive_integer(width=self.width, views=self.views)
        one_of(DTYPES, dtype=self.dtype)
        if set(self.source) - USER_FACTS != SOURCE_FACTS:
            raise TypeError(f"source must hold {sorted(SOURCE_FACTS)}, got {sorted(self.source)}")
        if not self.rows:
            object.__setattr__(self, "rows", max(1, min(PIECE_ROWS, PIECE_BYTES // self.record_bytes)))

    @property
    def stored(self) -> int:
        """S, versions of each training record on disk: the centre crop if stored, then its views."""
        return self.views + self.middle

    @property
    def record_bytes(self) -> int:
        """Bytes of one training record's features."""
        return self.stored * self.width * DTYPES[self.dtype].itemsize

    @property
    def identity(self) -> str:
        """SHA-256 of all fields except the `PLACES`. Every piece contains it."""
        return hashlib.sha256(json.dumps(_without_locations(self.to_dict()), sort_keys=True).encode()).hexdigest()

    def pieces(self, part: str) -> list[tuple[str, range]]:
        """The files of a part, and the range of its records in each."""
        count = self.counts[part]
        rows = (range(start, min(start + self.rows, count)) for start in range(0, count, self.rows))
        return [(f"{part}-{number:05d}.safetensors", records) for number, records in enumerate(rows)]

    def to_dict(self) -> dict[str, Any]:
        """Plain data that `from_dict` reads back."""
        return {"format": _FORMAT} | asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Contents:
        """The contents that `to_dict` wrote; `TypeError` or `KeyError` for anything else."""
        if set(data) != {"format", *(entry.name for entry in fields(cls))} or data["format"] != _FORMAT:
            raise TypeError("other fields")
        return cls(**{name: value for name, value in data.items() if name != "format"})


class Cache:
    """A cache of features on disk.

    Args:
        path: the folder.

    **Guarantee.** Assumes that each row was computed from its own record alone. Reading does not mix rows. The files
    are as private as the images: a feature vector reveals much about its image.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = expanded(path)

    def __repr__(self) -> str:
        return f"Cache({str(self.path)!r})"

    @property
    def exists(self) -> bool:
        """Whether a cache exists here, complete or not."""
        return is_cache(self.path)

    @functools.cached_property
    def contents(self) -> Contents:
        """The contents of the cache, complete or planned."""
        remedy = "make it with sfumato features SOURCE --output PATH"
        index = read_json(self.path / FEATURES, f"cache {str(self.path / FEATURES)!r}", remedy)
        try:
            if index["format"] != _FORMAT:
                raise damaged(self.path / FEATURES, "is of another version of sfumato")
            return Contents.from_dict(index)
        except (ValueError, TypeError, KeyError) as error:
            if isinstance(error, SfumatoError):
                raise
            raise damaged(self.path / FEATURES, "is damaged") from None

    def begin(self, contents: Contents) -> None:
        """Creates a cache, or resumes one with the same contents. Other contents are refused with their differences."""
        if self.exists:
            was, now = (
                _without_locations(self.contents.to_dict()),
                _without_locations(json.loads(json.dumps(contents.to_dict()))),
            )
            if differences := _differences(was, now):
                raise SfumatoError(
                    f"cache {str(self.path)!r} was started with other settings: {', '.join(differences)}",
                    "repeat the original command, or give another `directory`",
                )
            return
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise SfumatoError(f"{str(self.path)!r} exists but holds no features", "give a new `directory`")
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        write(self.path / FEATURES, json.dumps(contents.to_dict(), indent=2).encode() + b"\n", private=True)

    def missing(self, part: str) -> list[tuple[str, range]]:
        """The pieces of a part that are not yet written."""
        return [(name, rows) for name, rows in self.contents.pieces(part) if not (self.path / name).is_file()]

    def discard_damaged(self) -> list[str]:
        """Deletes damaged pieces and returns their names."""
        damaged = []
        pieces = [(part, *piece) for part in PARTS for piece in self.contents.pieces(part)]
        for part, name, rows in pieces:
            if not (self.path / name).is_file():
                continue
            try:
                self._piece(part, name, rows).check()
            except SfumatoError:
                (self.path / name).unlink()
                damaged.append(name)
        return damaged

    def write(
        self,
        name: str,
        features: Tensor,
        labels: np.ndarray,
        codes: np.ndarray,
        *,
        users: np.ndarray | None = None,
        groups: np.ndarray | None = None,
    ) -> None:
        """Writes a piece atomically, with the SHA-256 of its numbers.

        Args:
            name: from `missing`.
            features: (n, S, D), with the piece's numbers of records n and of versions S.
            labels: int64 (n,) or (n, L).
            codes: uint8 (n, 32), the two codes of each record (`record_users`).
            users: text (n,), code of each record's user (`user_codes`), if known.
            groups: text (n,), public group of each record's user, if known.
        """
        contents = self.contents
        stored = features.to(DTYPES[contents.dtype]).cpu().contiguous()
        if bool((torch.isinf(stored) & torch.isfinite(features.cpu())).any()):
            raise SfumatoError(
                f"some features are beyond the range of {contents.dtype}", "give `dtype=bfloat16` or float32"
            )
        arrays = {"labels": labels, "codes": codes}
        if "users" in contents.source:  # as declared in the contents
            arrays |= {name: texts for name, texts in (("users", users), ("groups", groups)) if texts is not None}
        write_piece(self.path / name, stored, arrays, cache=contents.identity)

    def records(self, part: str, *, progress: OnProgress | None = None) -> CachedRecords:
        """A part of a complete cache. All files are read once and checked against their SHA-256.

        Args:
            part: "train" or "test".
            progress: called with (files read, files in all).
        """
        contents = self.contents
        missing = [name for part in PARTS for name, _ in self.missing(part)]
        if missing:
            raise SfumatoError(
                f"cache {str(self.path)!r} is incomplete: {len(missing)} of its pieces are missing",
                "repeat the command of sfumato features to resume it",
            )
        pieces = [self._piece(part, name, rows) for name, rows in contents.pieces(part)]
        with ThreadPoolExecutor() as pool:
            for done, _ in enumerate(pool.map(Piece.check, pieces), start=1):
                if progress is not None:
                    progress(done, len(pieces))
        return CachedRecords(pieces)

    def _piece(self, part: str, name: str, rows: range) -> Piece:
        contents = self.contents
        shape = (len(rows), contents.stored if part == "train" else 1, contents.width)
        return Piece.read(self.path / name, cache=contents.identity, dtype=DTYPES[contents.dtype], shape=shape)


def _without_locations(contents: dict[str, Any]) -> dict[str, Any]:
    """A cache's description without the places of its records."""
    return {**contents, "source": {name: value for name, value in contents["source"].items() if name != PLACES}}


def _differences(was: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The differences of two descriptions, in words."""
    words = {
        "its images or labels have changed"
        if name in ("fingerprint", "material", "pixels")
        else f"{name} was {shortened(before)} and is {shortened(after)}": None
        for (*_, name), before, after in nested_differences(was, now)
    }
    return list(words)
