"""A source before it is read: how it is spelt, and what is declared of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sfumato.data.declared import FIELDS, Declared, OnProgress
from sfumato.data.paths import place_of

if TYPE_CHECKING:
    from sfumato.data.source import Source


@dataclass(frozen=True, init=False)
class SourceSpec:
    """A source by its spelling and its declarations: plain data, to be kept in a record or read in another process.

    Each fact that is declared is an attribute by its name as well.

    Args:
        spec: as `open_source` takes it, and so is whatever else is declared; None declares nothing.
        declared: all of it together.
        facts: facts by their names, which go over that.
    """

    spec: str
    declared: Declared

    def __init__(self, spec: str, declared: Declared | None = None, **facts: Any):
        object.__setattr__(self, "spec", spec)
        object.__setattr__(self, "declared", (declared or Declared()).with_(**facts))

    def __getattr__(self, name: str) -> Any:
        if name not in FIELDS:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return self.declared.fact(name)

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
        plain: dict[str, Any] = {"spec": place_of(self.spec)}
        given = self.declared.given
        for name, (_, one) in FIELDS.items():
            if name not in given and not one.metadata.get("recorded"):
                continue
            value = self.declared.fact(name)
            if one.metadata.get("path") and isinstance(value, str):
                value = str(Path(value).expanduser().resolve())
            plain[name] = list(value) if isinstance(value, tuple) else value
        return plain
