"""Records that are listed, by files or by lines: what is said of each, besides the record itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sfumato.data.classes import refuse_unwritable
from sfumato.data.clock import TimeStamp
from sfumato.data.declared import Order
from sfumato.data.subsets.split import record_in_test


@dataclass(frozen=True, kw_only=True)
class Listed:
    """What is said of one record.

    Args:
        label: its class's name; or 0 or 1 for each of the source's labels.
        part: "train", "test", or None to let the keyed hash decide.
        user: whose it is, where that is known.
        group: the public group that the user belongs to, likewise.
        time: its own time stamp, likewise.
        filtered: whether it stands in a list that was filtered by looking at private data.
    """

    label: str | tuple[int, ...]
    part: str | None = None
    user: str | None = None
    group: str | None = None
    time: TimeStamp | None = None
    filtered: bool = False

    def in_test(self, content: bytes, order: Order) -> bool:
        """Whether it belongs to the test part: as it says itself, else by a keyed hash of what is stored of it."""
        if self.part is not None:
            return self.part == "test"
        return record_in_test(order.owner_key, content, self.user, order.declared.loading.share)


def refuse_unwritable_names(listed: Sequence[Listed]) -> None:
    """Refuse names of classes, users and groups that could not be shown."""
    for what in ("label", "user", "group"):
        for name in sorted({name for one in listed if isinstance(name := getattr(one, what), str)}):
            refuse_unwritable(name, "class name" if what == "label" else what)


def columns_of(listed: Sequence[Listed], classes: tuple[str, ...], *, several: bool = False) -> dict[str, Any]:
    """Labels, users, groups and times of the records of one part, as `Records` holds them.

    Args:
        listed: if any names its user, group or time, all do, and all times are of one kind.
        classes: which classes there are, or which labels where these do not exclude each other.
        several: whether they don't.
    """
    labels = [one.label for one in listed]
    if several:
        known = np.array(labels, dtype=np.int64).reshape(-1, len(classes))
    else:
        numbers = {name: number for number, name in enumerate(classes)}
        known = np.array([numbers[str(label)] for label in labels], dtype=np.int64)
    timed = bool(listed) and listed[0].time is not None
    return {
        "labels": known,
        "users": _names([one.user for one in listed]),
        "groups": _names([one.group for one in listed]),
        "times": np.array([one.time for one in listed]) if timed else None,
    }


def _names(names: Sequence[str | None]) -> np.ndarray | None:
    return None if None in names else np.array(names, dtype=np.str_)
