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


IMAGES = ("digits", "folder", "torchvision")
"""Kinds of sources that only hold images. For tables and archives the records decide."""
TEXT_OPTIONS = ("text_column", "length", "vocabulary", "words", "task")
"""Declarations that only texts have."""


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

    @property
    def records(self) -> str | None:
        """Whether the records are "images", "texts" or "next words"; None if only the records themselves show it."""
        from sfumato.data.kinds import parse

        declared = self.declared.given
        if "task" in declared:
            return "next words"
        if parse(self.spec)[0] in IMAGES:
            return "images"
        return "texts" if any(name in declared for name in TEXT_OPTIONS) else None

    @property
    def feature_width(self) -> int | None:
        """D, the width of a cache's features; None for other sources."""
        from sfumato.data.features import Cache
        from sfumato.data.kinds import CACHE, parse

        kind, argument = parse(self.spec)
        return Cache(argument).contents.width if kind == CACHE else None

    def refuse_without_users(self) -> None:
        """Refuses a source whose spelling and declarations show that its records have no users."""
        from sfumato.data.kinds import parse
        from sfumato.data.record_users import refuse_without_users

        if self.declared.people.user_from is None and parse(self.spec)[0] in ("digits", "folder"):
            refuse_without_users(self.spec)

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
