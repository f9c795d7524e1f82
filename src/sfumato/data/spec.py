"""A source before it is read: how it is spelt, and what is declared of it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sfumato.data.paths import place_of

if TYPE_CHECKING:
    from sfumato.data.records import OnProgress
    from sfumato.data.source import Source


@dataclass(frozen=True, kw_only=True)
class SourceSpec:
    """A source by its spelling and its declarations: plain data, to be kept in a record or read in another process.

    Args:
        spec: as `open_source` takes it, and so is whatever else is declared; None declares nothing.
    """

    spec: str
    classes: tuple[str, ...] | None = None
    label_columns: tuple[str, ...] | None = None
    size: int | None = None
    channels: int | None = None
    bit_depth: int | None = None
    window: tuple[int, int] | None = None
    examples: int | None = None
    root: str | None = None
    download: bool = False
    test_fraction: float | None = None
    zoom: float | None = None
    user_from: str | None = None
    users: int | None = None
    open_set: bool | None = None
    skip_unreadable: bool | None = None
    text_column: tuple[str, ...] | None = None
    length: int | None = None
    vocabulary: int | None = None
    words: str | tuple[str, ...] | None = None
    public: bool | None = None

    @property
    def declared(self) -> dict[str, Any]:
        """What was declared, by name."""
        given = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "spec"}
        return {name: value for name, value in given.items() if value is not None}

    @property
    def is_public(self) -> bool:
        """Whether the source is public, as declared, or as its kind is; known before it is read."""
        from sfumato.data.kinds import is_public

        return is_public(self.spec) if self.public is None else self.public

    def open(self, owner_key: bytes, *, progress: OnProgress | None = None) -> Source:
        """The source, read: see `open_source`."""
        from sfumato.data.opening import open_source

        return open_source(self.spec, **self.declared, owner_key=owner_key, progress=progress)

    def record(self) -> dict[str, Any]:
        """Plain data, with absolute paths: arguments of `open_source` from wherever it is called."""
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in self.declared.items()}
        for name, path in (("root", self.root), ("words", self.words)):
            if isinstance(path, str):
                plain[name] = str(Path(path).expanduser().resolve())
        return {"spec": place_of(self.spec), **plain}
