"""The records of a custom loop by user: a step draws users, and the guarantee is for each user."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sfumato._checks import SfumatoError, positive_integer
from sfumato.data import ranks_within_users
from sfumato.data.classes import user_name
from sfumato.data.record_users import refuse_several
from sfumato.data.subsets import grouping
from sfumato.gradients import ClippedGradient, UserGradient
from sfumato.gradients.examples import Tree
from sfumato.privacy.unit import User, shown_by_plan
from sfumato.randomness import RunKey
from sfumato.training.custom.records import LoopRecords
from sfumato.training.user_records import UserRecords, record_shares


@dataclass(frozen=True, kw_only=True)
class LoopUsers(LoopRecords):
    """Users with their kept records, of which each shows at most `by_user.per_step` in a step.

    Args:
        count: number of users.
        by_user: the rows of each user.

    **Guarantee.** The inputs of a user are a function of their own records and of draws by (key, step, the user's
    name): see `UserRecords`.
    """

    by_user: UserRecords = field(repr=False)

    @property
    def fingerprint(self) -> str:
        """As of `LoopRecords`, and of the order of the users."""
        content = super().fingerprint.encode() + self.by_user.order.tobytes() + self.by_user.ends.tobytes()
        return hmac.new(self.key, content, hashlib.sha256).hexdigest()

    def pieces(self, rows: np.ndarray, size: int, key: RunKey, step: int) -> list[tuple[np.ndarray, ...]]:
        """The micro-batches of a step, as users (b,), the rows of their records (b, R) and a mask (b, R).

        Args:
            rows: the users' numbers.
            size: the most records at once, unless one user shows more.
        """
        return list(self.by_user.pieces(rows, size, key, step))

    def names(self, rows: np.ndarray) -> Sequence[object]:
        """What dropout keys are drawn by: the users' names."""
        return [self.by_user.draw_name(user) for user in rows]

    def batch(self, users: np.ndarray, places: np.ndarray, own: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
        """The inputs and targets (b, R, ...) of the users' records, with shares (b, R)."""
        inputs, targets = (one.unflatten(0, places.shape) for one in self.take(places.reshape(-1)))  # type: ignore
        return inputs, targets, record_shares(torch.from_numpy(own), targets, next_words=False)


def group_by_user(
    records: LoopRecords, users: Sequence[Any] | np.ndarray, per_user: int | None, per_step: int
) -> tuple[LoopUsers, User]:
    """The users with at most G records each, and the unit of their guarantee.

    Args:
        users: (N,), who each record belongs to, as strings or integers.
        per_user: G; None for all records.
        per_step: the most records that a user shows in a step.

    **Guarantee.** The kept records of a user are a function of that user's records and of the owner's key, as in
    `cap_per_user`: so a user who is added or removed with all of their records changes none of the others' (unit: one
    user; adjacency: add-or-remove). Each kept record is in one unit that a step draws, that of its user.

    Errors: `SfumatoError` if there is not one user for each record, or if inputs or targets are several tensors.
    """
    owners = _owners(records, users)
    remedy = "give a number of records of each user, such as 10"
    positive_integer(optional=True, per_user=per_user, per_step=per_step, remedy=remedy)
    unit = User(at_most=per_user, per_step=shown_by_plan(per_step, per_user))
    names, numbers = np.unique(owners, return_inverse=True)
    kept = np.arange(records.count)
    if per_user is not None:
        ranks = ranks_within_users(numbers, records.codes, np.zeros(records.count, np.int64), records.key)
        kept = np.flatnonzero(ranks < per_user)
    if not all(isinstance(one, Tensor) for one in records.zero_record):
        raise SfumatoError(
            "users are given, but inputs or targets are several tensors", "give one tensor of inputs and one of targets"
        )
    every = records.read
    known = {one.name: getattr(records, one.name) for one in fields(records)} | {
        "count": len(names),
        "read": lambda rows: every(kept[rows]),
        "codes": records.codes[kept],
        "sums": records.sums[kept],
        "identifiers": records.identifiers[kept],
        "users": _assignment(records, numbers),
        "examples": len(names),
        "facts": replace(records.facts, read=tuple(dict.fromkeys((*records.facts.read, "examples", "users")))),
    }
    return LoopUsers(**known, by_user=UserRecords.from_numbers(numbers[kept], names, unit.per_step)), unit


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
    if not isinstance(records, LoopUsers):
        return ClippedGradient(model, loss, template=template, capture=capture, **own)
    if template is not None or capture:
        raise SfumatoError("users are given, where template and capture have no effect", "leave them out")
    return UserGradient(model, loss, **own)


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
    return np.array([user_name(name) for name in names.tolist()])[numbers]


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
