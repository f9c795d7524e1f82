"""The records of a custom loop by user: at most G of each are kept, and the guarantee is for each user.

A step draws records, or users with all of their kept records.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sfumato._checks import SfumatoError, one_of, positive_integer
from sfumato.data import ranks_within_users
from sfumato.data.classes import Spellings
from sfumato.data.identity.fingerprint import grouping
from sfumato.data.identity.record_users import refuse_several
from sfumato.gradients import ClippedGradient, UserGradient
from sfumato.gradients.examples import Tree
from sfumato.privacy.unit import User
from sfumato.training.custom.records import LoopRecords
from sfumato.training.steps import pieces_of_users, record_shares

EXAMPLES, USERS = "examples", "users"
"""What a step draws."""


@dataclass(frozen=True, kw_only=True)
class UserRecords(LoopRecords):
    """Users, each with all of their kept records.

    Args:
        count: number of users.
        order: int64 (N,), the rows of all records, user by user.
        ends: int64 (count + 1,): the rows of user u are `order[ends[u] : ends[u + 1]]`.

    **Guarantee.** The inputs of a user are a function of their own records: see `pieces_of_users`.
    """

    order: np.ndarray = field(repr=False)
    ends: np.ndarray = field(repr=False)

    @property
    def fingerprint(self) -> str:
        """As of `LoopRecords`, and of the order of the users."""
        content = super().fingerprint.encode() + self.order.tobytes() + self.ends.tobytes()
        return hmac.new(self.key, content, hashlib.sha256).hexdigest()

    def pieces(self, rows: np.ndarray, size: int) -> list[tuple[np.ndarray, ...]]:
        """The micro-batches of a step, as users (b,), the rows of their records (b, R) and a mask (b, R).

        Args:
            rows: the users' numbers.
            size: the most records at once, unless one user has more.
        """
        return list(pieces_of_users(self.order, self.ends, rows, size))

    def batch(self, users: np.ndarray, places: np.ndarray, own: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
        """The inputs and targets (b, R, ...) of the users' records, with shares (b, R)."""
        inputs, targets = (one.unflatten(0, places.shape) for one in self.take(places.reshape(-1)))  # type: ignore
        return inputs, targets, record_shares(torch.from_numpy(own), targets, next_words=False)


def by_user(
    records: LoopRecords, users: Sequence[Any] | np.ndarray, per_user: int | None, drawn: str
) -> tuple[LoopRecords, User]:
    """The records with at most G of each user, and the unit of their guarantee.

    Args:
        users: (N,), who each record belongs to, as strings or integers.
        per_user: G; with "users" None for all records.
        drawn: "examples", or "users": each with all of their kept records.

    **Guarantee.** The kept records of a user are a function of that user's records and of the owner's key, as in
    `cap_per_user`: so a user who is added or removed with all of their records changes at most G of the kept ones, and
    none of the others' (unit: one user; adjacency: add-or-remove). With "users" each kept record is in one unit that a
    step draws, that of its user.

    Errors: `SfumatoError` if there is not one user for each record, without G for "examples", and for "users" if inputs
    or targets are several tensors.
    """
    one_of("drawn", drawn, (EXAMPLES, USERS))
    owners = _owners(records, users)
    if drawn == EXAMPLES or per_user is not None:
        remedy = "give the largest number of records to keep of each user, such as 10"
        positive_integer("per_user", per_user, remedy=remedy)
    names, numbers = np.unique(owners, return_inverse=True)
    kept = np.arange(records.count)
    if per_user is not None:
        ranks = ranks_within_users(numbers, records.codes, np.zeros(records.count, np.int64), records.key)
        kept = np.flatnonzero(ranks < per_user)
    every = records.read
    selected = replace(
        records,
        count=len(kept),
        read=lambda rows: every(kept[rows]),
        codes=records.codes[kept],
        sums=records.sums[kept],
        identifiers=records.identifiers[kept],
        users=_assignment(records, numbers),
        examples=len(kept),
        facts=replace(records.facts, read=tuple(dict.fromkeys((*records.facts.read, "examples", "users")))),
    )
    if drawn == EXAMPLES:
        return selected, User(drawn="examples", at_most=per_user, users=len(names))
    return _grouped(selected, numbers[kept]), User(drawn="users", at_most=per_user)


def gradient_of(
    records: LoopRecords,
    model: nn.Module,
    loss: Callable[[Any, Any], Tensor],
    *,
    template: tuple[Tree, Tree] | None,
    capture: bool,
    **own: Any,
) -> ClippedGradient | UserGradient:
    """The clipped sum over what a step draws, records or users."""
    if not isinstance(records, UserRecords):
        return ClippedGradient(model, loss, template=template, capture=capture, **own)
    if template is not None or capture:
        raise SfumatoError("drawn is users, where template and capture have no effect", "leave them out")
    return UserGradient(model, loss, **own)


def _grouped(records: LoopRecords, numbers: np.ndarray) -> UserRecords:
    """The records of each user together.

    Args:
        numbers: int64 (N,), the number of each record's user, from 0.
    """
    if not all(isinstance(one, Tensor) for one in records.zero_record):
        raise SfumatoError(
            "drawn is users, but inputs or targets are several tensors",
            "give one tensor of inputs and one of targets, or drawn=examples",
        )
    known = {one.name: getattr(records, one.name) for one in fields(records)}
    ends = np.append(0, np.bincount(numbers).cumsum())
    known |= {"count": len(ends) - 1, "examples": len(ends) - 1}
    return UserRecords(**known, order=np.argsort(numbers, kind="stable"), ends=ends)


def _owners(records: LoopRecords, users: Sequence[Any] | np.ndarray) -> np.ndarray:
    """The user of each record, (N,)."""
    owners = np.asarray(users, dtype=None if hasattr(users, "dtype") else object)  # a list keeps what it holds
    if owners.shape != (records.count,):
        raise SfumatoError(
            f"users must be one name or number for each of {records.count} records, got shape {owners.shape}",
            "give a list, or an array (N,), in the order of the records",
        )
    if np.ma.is_masked(users) or (kinds := _kinds(owners)) not in ({"strings"}, {"integers"}):
        found = "masked values" if np.ma.is_masked(users) else " and ".join(sorted(kinds))
        raise SfumatoError(
            f"users must be all strings or all integers, got {found}",
            "give the name or number of each record's user, and leave out records without one",
        )
    if kinds == {"integers"}:
        return owners
    names, numbers = np.unique(owners, return_inverse=True)
    for name, row in zip(names.tolist(), np.unique(numbers, return_index=True)[1].tolist(), strict=True):
        refuse_several(name, f"record {row}")
    spellings = Spellings()
    return np.array([spellings.normalise("user", name) for name in names.tolist()])[numbers]


def _kinds(owners: np.ndarray) -> set[str]:
    """The kinds of the users. Several missing ones would be one user, as would the number 1 and the text "1"."""
    types = set(map(type, owners)) if owners.dtype.kind == "O" else {owners.dtype.type}
    numbers = {of for of in types if of is not bool and issubclass(of, (int, np.integer))}
    names = {of for of in types if issubclass(of, str)}
    kinds = {of.__name__ for of in types - numbers - names}
    return kinds | ({"integers"} if numbers else set()) | ({"strings"} if names else set())


def _assignment(records: LoopRecords, numbers: np.ndarray) -> str:
    """Which records belong to one user, in any order; reveals nothing without the owner's key."""
    named = np.zeros((len(numbers), 32), np.uint8)
    named[:, :8] = numbers.astype("<i8")[:, None].view(np.uint8)
    return grouping(records.key, np.concatenate([named, records.identifiers], axis=1))
