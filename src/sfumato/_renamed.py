"""Public names that have moved: the old name still works for one version, with a line that says the new one."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any


def with_old_names(
    room: str, now: Callable[[str], Any], moved: Mapping[str, str], since: str = "0.2"
) -> Callable[[str], Any]:
    """A room's `__getattr__` that also knows names which have moved to other rooms.

    Args:
        room: the room's `__name__`.
        now: its `__getattr__` for the names that it has.
        moved: the present home of each old name, such as "sfumato.experiment".
    """

    def get(name: str) -> Any:
        if name not in moved:
            return now(name)
        warnings.warn(
            f"{room}.{name} is now {moved[name]}.{name}; the old name goes in version {since}",
            DeprecationWarning,
            stacklevel=2,
        )
        return getattr(importlib.import_module(moved[name]), name)

    return get
