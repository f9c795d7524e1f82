"""A part of a source with further records behind it, as a run's steps take them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from sfumato.data.parts import Part


@dataclass(frozen=True, kw_only=True, eq=False)
class Appended:
    """All records of two parts: first those of one, in their places, then those of the other.

    Args:
        first, then: with images, or texts, of one size, and labels of one form.
        named: whose each of the further records is, (M,) of text; None where users play no part.

    >>> from sfumato.data import Records
    >>> one = Records(images=np.zeros((2, 8, 8, 1), np.uint8), labels=np.array([0, 1]))
    >>> both = Appended(first=one, then=one)
    >>> len(both), both.take(np.array([3, 0])).shape, both.labels.tolist()
    (4, (2, 8, 8, 1), [0, 1, 0, 1])
    """

    first: Part = field(repr=False)
    then: Part = field(repr=False)
    named: np.ndarray | None = field(repr=False, default=None)

    def __len__(self) -> int:
        return len(self.first) + len(self.then)

    @property
    def shape(self) -> tuple[int, ...]:
        """N, H, W, C of images; N, T of texts."""
        return (len(self), *self.first.shape[1:])

    @property
    def labels(self) -> np.ndarray:
        """int64 (N,) or (N, L)."""
        return np.concatenate([self.first.labels, self.then.labels])

    @property
    def users(self) -> np.ndarray | None:
        """(N,) of text, where the first part's are known."""
        if self.first.users is None or self.named is None:
            return None
        return np.concatenate([self.first.users, self.named])

    def take(self, rows: np.ndarray | slice) -> np.ndarray:
        """What the records at these positions hold, in their order."""
        rows = np.arange(len(self))[rows]
        later = rows >= len(self.first)
        found = np.empty((len(rows), *self.first.shape[1:]), self.first.take(slice(0, 0)).dtype)
        for part, chosen, start in ((self.first, ~later, 0), (self.then, later, len(self.first))):
            if chosen.any():
                found[chosen] = part.take(rows[chosen] - start)
        return found
