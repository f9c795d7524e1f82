"""One part of a source of texts."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import numpy as np

from sfumato.data.records import Chosen


@dataclass(frozen=True, kw_only=True, eq=False)
class TextRecords(Chosen):
    """One part of a source: N texts as numbers of words, and the class of each.

    Args:
        tokens: int32 (N, T), 0 after the last word.
        labels: int64 (N,), positions in the source's class list.
        codes: uint8 (N, 32), each record's own two (`codes`): of the text as it is stored, and of its words.
        texts: array (N,) of the texts themselves, where the source has them; for their owner's eyes.
        users, groups, times: as in `Records`.
        rows: int64 (N,) of where the records stand in the array that they come from, likewise.

    >>> codes = np.zeros((2, 32), np.uint8)
    >>> part = TextRecords(tokens=np.zeros((2, 5), np.int32), labels=np.array([0, 1]), codes=codes)
    >>> len(part), part.shape, len(part.chosen(np.array([True, False])))
    (2, (2, 5), 1)
    """

    tokens: np.ndarray = field(repr=False)
    labels: np.ndarray = field(repr=False)
    codes: np.ndarray = field(repr=False)
    texts: np.ndarray | None = field(repr=False, default=None)
    users: np.ndarray | None = field(repr=False, default=None)
    groups: np.ndarray | None = field(repr=False, default=None)
    times: np.ndarray | None = field(repr=False, default=None)
    rows: np.ndarray | None = field(repr=False, default=None)
    files: None = field(repr=False, default=None, init=False)

    def __post_init__(self) -> None:
        if self.tokens.dtype != np.int32 or self.tokens.ndim != 2:
            raise TypeError(f"tokens must be int32 (N, T), got {self.tokens.dtype} {self.tokens.shape}")
        for one in fields(self):
            known = getattr(self, one.name)
            if known is not None and len(known) != len(self.tokens):
                raise TypeError(f"{one.name} must have {len(self.tokens)} rows, got {len(known)}")

    @property
    def shape(self) -> tuple[int, ...]:
        """N, T."""
        return self.tokens.shape

    @property
    def nbytes(self) -> int:
        """Bytes in memory, without the texts themselves."""
        return self.tokens.nbytes

    def take(self, rows: np.ndarray | slice) -> np.ndarray:
        """Numbers int32 (n, T) of the records at these positions."""
        return self.tokens[rows]
