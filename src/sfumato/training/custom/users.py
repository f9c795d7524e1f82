"""The records of a custom loop by user: at most G of each are kept, and the guarantee is for each user."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sfumato._checks import SfumatoError, positive_integer
from sfumato.data import ranks_within_users
from sfumato.privacy.unit import User
from sfumato.training.custom.records import LoopRecords


def keep_per_user(
    records: LoopRecords, users: Sequence[Any] | np.ndarray, per_user: int | None
) -> tuple[LoopRecords, User]:
    """The records with at most G of each user, and the unit of their guarantee.

    Args:
        users: (N,), who each record belongs to, as strings or integers.
        per_user: G.

    **Guarantee.** The kept records of a user are a function of that user's records and of the owner's key, as in
    `cap_per_user`: so a user who is added or removed with all of their records changes at most G of the kept ones, and
    none of the others' (unit: one user; adjacency: add-or-remove).

    Errors: `SfumatoError` if there is not one user for each record, and without G.
    """
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
    remedy = "give the largest number of records to keep of each user, such as 10"
    at_most = positive_integer("per_user", per_user, remedy=remedy)
    names, numbers = np.unique(owners, return_inverse=True)
    ranks = ranks_within_users(numbers, records.codes, np.zeros(records.count, np.int64), records.key)
    kept = np.flatnonzero(ranks < at_most)
    every = records.read
    selected = replace(
        records,
        count=len(kept),
        read=lambda rows: every(kept[rows]),
        codes=records.codes[kept],
        identifiers=records.identifiers[kept],
        users=_assignment(records, names, numbers),
        examples=len(kept),
        facts=replace(records.facts, read=tuple(dict.fromkeys((*records.facts.read, "examples", "users")))),
    )
    return selected, User(drawn="examples", at_most=at_most, users=len(names))


def _kinds(owners: np.ndarray) -> set[str]:
    """The kinds of the users. Several missing ones would be one user, as would the number 1 and the text "1"."""
    types = set(map(type, owners)) if owners.dtype.kind == "O" else {owners.dtype.type}
    numbers = {of for of in types if of is not bool and issubclass(of, (int, np.integer))}
    names = {of for of in types if issubclass(of, str)}
    kinds = {of.__name__ for of in types - numbers - names}
    return kinds | ({"integers"} if numbers else set()) | ({"strings"} if names else set())


def _assignment(records: LoopRecords, names: np.ndarray, numbers: np.ndarray) -> str:
    """Digest of the assignment of records to users, in any order; reveals nothing without the owner's key."""
    coded = [hmac.digest(records.key, b"own user" + str(name).encode(), "sha256") for name in names.tolist()]
    pairs = sorted(code.tobytes() + coded[number] for code, number in zip(records.codes, numbers, strict=True))
    return hmac.new(records.key, b"own assignment" + b"".join(pairs), hashlib.sha256).hexdigest()
