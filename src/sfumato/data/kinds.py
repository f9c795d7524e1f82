"""The kinds of sources, how they are spelt, and whether there is anything at all: found out before anything is read."""

from __future__ import annotations

import difflib
import importlib
import os
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from sfumato._checks import SfumatoError
from sfumato.data import published
from sfumato.data.classes import refuse_unwritable
from sfumato.data.paths import expanded, is_cache, is_data_set, of_hugging_face

if TYPE_CHECKING:
    from types import ModuleType

    from sfumato.data.declared import Order
    from sfumato.data.parts import Parts


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of source.

    Args:
        reader: the file of this room whose function `load` reads it, given what follows the colon and what the owner
            declared; None for a cache, which is opened. Its `UNDERSTOOD` names the facts that it understands, of those
            that say nothing to most readers.
        argument: what follows the colon, or None for a name that stands alone.
        called: what it is in a refusal.
        published: whether the data is published, so that nothing about it is secret.
        sharded: whether what follows the colon may be a pattern; the reader's `find` looks for what it means.
    """

    reader: str | None
    argument: str | None
    called: str = "source"
    published: bool = False
    sharded: bool = False

    @property
    def understood(self) -> tuple[str, ...]:
        """Names of facts that its reader understands, of those that a reader must name."""
        return getattr(self._module, "UNDERSTOOD", ())

    def load(self, argument: str, order: Order) -> Parts:
        """What the reader makes of it."""
        return self._module.load(argument, order)

    def find(self, argument: str) -> None:
        """Refuse shards that are not there, or that no library reads."""
        self._module.find(argument)

    @property
    def _module(self) -> ModuleType:
        return importlib.import_module(f"sfumato.data.readers.{self.reader}")


KINDS: MappingProxyType[str, Kind] = MappingProxyType(
    {
        "digits": Kind(reader="digits", argument=None, published=True),
        "folder": Kind(reader="folder", argument="PATH", called="folder"),
        "npz": Kind(reader="arrays", argument="PATH", called="archive"),
        "csv": Kind(reader="table", argument="PATH", called="table"),
        "parquet": Kind(reader="parquet", argument="PATH", sharded=True),
        "webdataset": Kind(reader="webdataset", argument="SHARDS", sharded=True),
        "hf": Kind(reader="huggingface", argument="PATH", called="data set", sharded=True),
        "torchvision": Kind(reader="zoo", argument="NAME", published=True),
        "features": Kind(reader=None, argument="PATH", called="cache"),
    }
)

CACHE = "features"
PUBLISHED = frozenset(name for name, kind in KINDS.items() if kind.published)
"""The kinds whose data are published. Data from Python are of none of these."""


def refuse_absent(spec: str) -> None:
    """Refuse a spelling that is wrong, or a path that leads nowhere, before anything slow is begun."""
    name, argument = parse(spec)
    kind = KINDS[name]
    if kind.sharded:
        kind.find(argument)
    elif name == "folder" and is_data_set(argument):
        raise of_hugging_face(argument)
    elif kind.argument == "PATH" and not os.path.exists(expanded(argument)):
        made = "" if kind.reader else ", or make it with sfumato features SOURCE --output PATH"
        raise SfumatoError(
            f"{kind.called} {str(expanded(argument))!r} does not exist", f"correct the path after {name}:{made}"
        )


def is_public(spec: str) -> bool:
    """Whether the source is public without being declared so: a published collection, or features of public data."""
    name, argument = parse(spec)
    if KINDS[name].reader is not None:
        return KINDS[name].published
    from sfumato.data.caches.features import Cache

    return bool(Cache(argument).contents.source["public"])


def knows_user_from(kind: str, rule: str | None) -> bool:
    """Whether a source of this kind may be opened with this `user_from`."""
    understood = KINDS[kind].understood if kind in KINDS and kind != CACHE else ()
    return rule is not None and not {"user_from", f"user_from={rule}"}.isdisjoint(understood)


def parse(spec: str) -> tuple[str, str]:
    """Kind and argument of a source's spelling.

    >>> parse("folder:pictures"), parse("digits")
    (('folder', 'pictures'), ('digits', ''))
    """
    refuse_unwritable(spec, "source", longest=None)
    name, colon, argument = spec.partition(":")
    kind = KINDS.get(name)
    spellings = ", ".join(key if value.argument is None else f"{key}:{value.argument}" for key, value in KINDS.items())
    if kind is None:
        remedy = f"write one of {spellings}"
        if near := difflib.get_close_matches(name, KINDS, n=1, cutoff=0.75):
            remedy = f"did you mean {near[0]}{colon}{argument}"
        elif not colon and os.sep in spec:
            remedy = f"no run is there either; {remedy}"
        named = (
            [known for known in published.spellings() if known.lower() == spec.lower()] if spec.isidentifier() else []
        )
        if named:
            remedy = f"write torchvision:{named[0]}"
        elif is_cache(spec):
            remedy = f"write features:{spec} for this cache"
        elif is_data_set(spec):
            remedy = f"write hf:{spec} for this data set"
        elif spec and os.path.isdir(expanded(spec)):
            remedy = f"write folder:{spec} for a folder of images"
        elif colon and argument.startswith("//"):
            remedy = "download it, and name what was unpacked, such as folder:PATH"
        elif spec.lower().endswith((".zip", ".tar.gz", ".tgz")):
            remedy = "unpack it, and name what is in it, such as folder:PATH"
        elif Path(spec).suffix.lower() in (".png", ".jpg", ".jpeg", ".tif", ".tiff"):
            remedy = "an image is no data set: name the folder that holds the class folders, folder:PATH"
        elif Path(spec).suffix == ".tar":
            remedy = f"write webdataset:{spec} for this file"
        elif Path(spec).suffix in (".npz", ".csv", ".parquet"):
            remedy = f"write {Path(spec).suffix[1:]}:{spec} for this file"
        raise SfumatoError(f"source {spec!r} is of no known kind", remedy)
    if kind.argument is None and colon:
        raise SfumatoError(f"source {spec!r} takes nothing after its name", f"write {name}")
    if kind.argument is not None and not argument:
        raise SfumatoError(f"source {spec!r} lacks its {kind.argument}", f"write {name}:{kind.argument}")
    return name, argument
