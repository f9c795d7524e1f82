"""A source before it is read: how it is spelt, and what is declared of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sfumato._choices import OfParts
from sfumato.data.declared import Declared, OnProgress
from sfumato.data.paths import place_of

if TYPE_CHECKING:
    from sfumato.data.source import Source


@dataclass(frozen=True, init=False)
class SourceSpec(OfParts):
    """A source by its spelling and its declarations: plain data, to be kept in a record or read in another process.

    Args:
        spec: as `open_source` takes it, and so is whatever is declared, all together or each fact by its name.
    """

    spec: str
    declared: Declared

    @property
    def is_public(self) -> bool:
        """Whether the source is public, as declared, or as its kind is; known before it is read."""
        from sfumato.data.kinds import is_public

        return is_public(self.spec) if self.declared.public is None else self.declared.public

    def open(self, owner_key: bytes, *, progress: OnProgress | None = None) -> Source:
        """The source, read: see `open_source`."""
        from sfumato.data.opening import open_source

        return open_source(self.spec, owner_key=owner_key, declared=self.declared, progress=progress)

    def record(self) -> dict[str, Any]:
        """Plain data, with absolute paths: arguments of `open_source` from wherever it is called."""
        plain = self.declared.to_dict()
        for name in ("root", "words"):
            if isinstance(plain.get(name), str):
                plain[name] = str(Path(plain[name]).expanduser().resolve())
        return {"spec": place_of(self.spec), **plain}
