"""Public names that have changed: the old name still works for one version, with a warning that says the new one."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any

REMOVED_IN = "0.3"
"""The version that knows the old names no longer."""


def warn_renamed(old: str, new: str, *, stacklevel: int = 3) -> None:
    """Warn whoever uses the old name; they are so many calls above."""
    warnings.warn(f"{old} is now {new}; the old name goes in version {REMOVED_IN}", DeprecationWarning, stacklevel)


def with_old_names(room: str, current: Callable[[str], Any], renamed: Mapping[str, str]) -> Callable[[str], Any]:
    """A package's `__getattr__` that also knows its old names.

    Args:
        room: the package's `__name__`.
        current: its `__getattr__` for the names that it has.
        renamed: what each old name is now, such as "sfumato.experiment.Settings".
    """

    def get(name: str) -> Any:
        if name not in renamed:
            return current(name)
        warn_renamed(f"{room}.{name}", renamed[name])
        package, _, new = renamed[name].rpartition(".")
        found = getattr(importlib.import_module(package), new, None)
        return importlib.import_module(renamed[name]) if found is None else found

    return get


class OldName:
    """An attribute of a class under the name that it had.

    Args:
        new: its name now.
    """

    def __init__(self, new: str):
        self._new = new

    def __set_name__(self, kind: type, name: str) -> None:
        self._old = f"{kind.__name__}.{name}"

    def __get__(self, instance: Any, kind: type) -> Any:
        if instance is None:
            return self
        warn_renamed(self._old, self._new)
        return getattr(instance, self._new)
