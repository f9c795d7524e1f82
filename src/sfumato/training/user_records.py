"""The records of users: which of them a user shows in a step, and micro-batches of whole users."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import numpy as np
from torch import Tensor

from sfumato.randomness import RunKey

USERS_AT_ONCE = 32
"""Users are padded to up to 8 records where this many of them fit into a micro-batch: each micro-batch costs time."""


class UserPiece(NamedTuple):
    """A micro-batch of whole users.

    Args:
        users: int64 (b,), their numbers.
        rows: int64 (b, R), the rows of their records. A user with fewer is padded with their first record.
        own: bool (b, R), False for padding.
    """

    users: np.ndarray
    rows: np.ndarray
    own: np.ndarray


@dataclass(frozen=True, kw_only=True, eq=False)
class UserRecords:
    """The records of each user, and how many of them a user shows in a step.

    Args:
        order: int64 (N,), the rows of all records, user by user.
        ends: int64 (users + 1,): the rows of user u are `order[ends[u] : ends[u + 1]]`.
        names: (users,), what each user is called.
        per_step: the most records that a user shows in a step; None for all.
    """

    order: np.ndarray = field(repr=False)
    ends: np.ndarray = field(repr=False)
    names: np.ndarray = field(repr=False)
    per_step: int | None = None

    @classmethod
    def from_numbers(cls, numbers: np.ndarray, names: np.ndarray, per_step: int | None) -> Self:
        """From the number int64 (N,) of each record's user, a position in `names`."""
        ends = np.append(0, np.bincount(numbers, minlength=len(names)).cumsum())
        return cls(order=np.argsort(numbers, kind="stable"), ends=ends, names=names, per_step=per_step)

    def __len__(self) -> int:
        return len(self.names)

    def rows(self, user: int) -> np.ndarray:
        """The rows of a user's records, ascending."""
        return self.order[self.ends[user] : self.ends[user + 1]]

    def draw_name(self, user: int) -> str:
        """What the draws of a user go by: the name, since the number moves if another user is added or removed."""
        return f"user {self.names[user]}"

    def shown(self, user: int, key: RunKey, step: int) -> np.ndarray:
        """The rows of the records that a user shows in a step, in their order.

        **Guarantee.** The choice is a function of (key, step, the user's name and number of records): whoever else
        takes part or is in the data, it stays the same (unit: one user; adjacency: any). It is uniform over the user's
        own records, and independent between steps and users.

        >>> records = UserRecords.from_numbers(np.array([1, 0, 1, 1]), np.array(["ann", "bob"]), 2)
        >>> [records.shown(user, RunKey.from_seed(0), step=0).tolist() for user in (0, 1)]
        [[1], [2, 3]]
        """
        rows = self.rows(user)
        if self.per_step is None or len(rows) <= self.per_step:
            return rows
        generator = key.generator("records", step, self.draw_name(user))
        return rows[np.sort(generator.permutation(len(rows))[: self.per_step])]

    def pieces(self, users: np.ndarray, size: int, key: RunKey, step: int) -> Iterator[UserPiece]:
        """Yields micro-batches of whole users, padded to R records: the number that each shows, rounded up.

        Args:
            users: int64 (n,), the numbers of the users who take part.
            size: the most records of a micro-batch, unless it has a single user.

        **Guarantee.** R is a function of the user's own number of records, of `per_step` and of `size`, whoever else
        takes part (unit: one user; adjacency: any).

        >>> records = UserRecords.from_numbers(np.array([0, 0, 1, 1, 1, 1, 2, 2]), np.array(["a", "b", "c"]), None)
        >>> pieces = records.pieces(np.arange(3), 4, RunKey.from_seed(0), 0)
        >>> [(piece.users.tolist(), piece.rows.tolist()) for piece in pieces]
        [([0, 2], [[0, 1], [6, 7]]), ([1], [[2, 3, 4, 5]])]
        """
        least = min(8, size // USERS_AT_ONCE)
        counts = np.minimum(np.diff(self.ends)[users], len(self.order) if self.per_step is None else self.per_step)
        widths = np.array([round_up_records(int(count), least) for count in counts], dtype=np.int64)
        for width in np.unique(widths).tolist():
            alike, together = users[widths == width], max(1, size // width)
            for start in range(0, len(alike), together):
                some = alike[start : start + together]
                shown = [self.shown(user, key, step) for user in some.tolist()]
                own = np.arange(width) < np.array([len(rows) for rows in shown])[:, None]
                rows = np.array([np.append(rows, np.full(width - len(rows), rows[0])) for rows in shown])
                yield UserPiece(some, rows, own)


def record_shares(mask: Tensor, targets: Tensor, *, next_words: bool) -> Tensor:
    """The share of each record in its user's loss, float (b, R): equal, or for next words by their number.

    Args:
        mask: bool (b, R), False for padding.
        targets: (b, R, ...), of next words (b, R, T).

    **Guarantee.** A user's shares are a function of their own records, and sum to 1 (unit: one user; adjacency: any).

    >>> import torch
    >>> words = torch.tensor([[[2, 3, 4], [5, 0, 0], [0, 0, 0]]])
    >>> record_shares(torch.tensor([[True, True, False]]), words, next_words=True)
    tensor([[0.7500, 0.2500, 0.0000]])
    """
    weights = mask * (targets > 0).sum(2) if next_words else mask
    return weights / weights.sum(1, keepdim=True)


def round_up_records(records: int, least: int = 1) -> int:
    """Rounds a number of records up to the next of 1 to 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, ...

    So at most a fifth of the computation is padding, except up to 8 records, for which multiples of `least` are taken.

    >>> [round_up_records(records) for records in (1, 7, 9, 17, 100)]
    [1, 7, 10, 20, 112]
    >>> [round_up_records(records, 4) for records in (1, 7, 9, 17, 100)]
    [4, 8, 10, 20, 112]
    """
    step = max(1, least) if records <= 8 else 1 << (records - 1).bit_length() - 3
    return -(-records // step) * step
