"""A source before it is read: its spelling and its declared facts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sfumato._choices import NestedChoices
from sfumato.data.declared import Declared, OnProgress
from sfumato.data.paths import place_of

if TYPE_CHECKING:
    from sfumato.data.source import Source


@dataclass(frozen=True, init=False)
class SourceSpec(NestedChoices):
    """The spelling and the declared facts of a source: plain data for records and other processes.

    Args:
        spec: as for `open_source`. Declared facts are given in one object or by name.
    """

    spec: str
    declared: Declared

    @property
    def is_public(self) -> bool:
        """Whether the source is public, as declared or by its kind, before it is read."""
        from sfumato.data.kinds import is_public

        return is_public(self.spec) if self.declared.public is None else self.declared.public

    def open(self, owner_key: bytes, *, progress: OnProgress | None = None) -> Source:
        """Opens the source: see `open_source`."""
        from sfumato.data.opening import open_source

        return open_source(self.spec, owner_key=owner_key, declared=self.declared, progress=progress)

    def record(self) -> dict[str, Any]:
        """Plain data with absolute paths: arguments of `open_source` that work from any directory."""
        plain = self.declared.to_dict()
        for name in ("root", "words"):
            if isinstance(plain.get(name), str):
                plain[name] = str(Path(plain[name]).expanduser().resolve())
        return {"spec": place_of(self.spec), **plain}
