"""The kinds of sources, how to spell them, and checks that they exist, before anything is read."""

from __future__ import annotations

import ast
import difflib
import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sfumato._checks import SfumatoError
from sfumato.data.classes import refuse_unwritable
from sfumato.data.declared import kinds_with
from sfumato.data.paths import expanded, hugging_face_error, is_cache, is_data_set


@dataclass(frozen=True, kw_only=True)
class SourceKind:
    """One kind of source.

    Args:
        reader: the function in `readers` that reads the source, as module:function; None for a cache.
        argument: name of the text after the colon; None for a kind without an argument.
        called: name of the source in errors.
        published: whether the data are published, so that nothing about them is secret.
        find: the function in `readers` that refuses an argument that may be a pattern, if nothing is there.
    """

    reader: str | None
    argument: str | None
    called: str = "source"
    published: bool = False
    find: str | None = None

    def load(self, argument: str, order: Any) -> Any:
        """Reads the source with its reader: the `Parts` for an `Order`."""
        return _reader(self.reader)(argument, order)


def _reader(spelling: str | None) -> Callable[..., Any]:
    """A function in `readers`. Readers are imported late: they need numpy, torch and Pillow."""
    module, _, function = str(spelling).partition(":")
    return getattr(importlib.import_module(f"sfumato.data.readers.{module}"), function)


KINDS: MappingProxyType[str, SourceKind] = MappingProxyType(
    {
        "digits": SourceKind(reader="published:load_digits", argument=None, published=True),
        "folder": SourceKind(reader="folder:load", argument="PATH", called="folder"),
        "npz": SourceKind(reader="arrays:load", argument="PATH", called="archive"),
        "csv": SourceKind(reader="table:load", argument="PATH", called="table"),
        "parquet": SourceKind(reader="arrow:load_parquet", argument="PATH", find="arrow:find_parquet"),
        "hf": SourceKind(
            reader="arrow:load_hugging_face", argument="PATH", called="data set", find="arrow:find_hugging_face"
        ),
        "torchvision": SourceKind(reader="published:load_torchvision", argument="NAME", published=True),
        "features": SourceKind(reader=None, argument="PATH", called="cache"),
    }
)

CACHE = "features"
PUBLISHED = frozenset(name for name, kind in KINDS.items() if kind.published)
"""The kinds whose data are published. Data from Python are never among them."""


def refuse_absent(spec: str) -> None:
    """Refuses wrong spellings and paths that do not exist, before anything slow starts."""
    name, argument = parse(spec)
    kind = KINDS[name]
    if kind.find:
        _reader(kind.find)(argument)
    elif name == "folder" and is_data_set(argument):
        raise hugging_face_error(argument)
    elif kind.argument == "PATH" and not os.path.exists(expanded(argument)):
        alternative = "" if kind.reader else ", or make it with sfumato features SOURCE --output PATH"
        raise SfumatoError(
            f"{kind.called} {str(expanded(argument))!r} does not exist", f"correct the path after {name}:{alternative}"
        )


def is_public(spec: str) -> bool:
    """Whether the source is public by default: published data, or features of public data."""
    name, argument = parse(spec)
    if KINDS[name].reader is not None:
        return KINDS[name].published
    from sfumato.data.features import Cache

    return bool(Cache(argument).contents.source["public"])


def supports_user_from(kind: str, rule: str | None) -> bool:
    """Whether a source of this kind may be opened with this `user_from`."""
    return rule is not None and kind in (kinds_with("user_from", rule) or ())


def torchvision_names() -> list[str]:
    """The names in `torchvision.datasets`, from its file: importing it takes seconds."""
    package = find_spec("torchvision")
    if package is None or not package.origin or not (Path(package.origin).parent / "datasets").is_dir():
        return []
    file = Path(package.origin).parent / "datasets" / "__init__.py"
    assigned = [node for node in ast.parse(file.read_bytes()).body if isinstance(node, ast.Assign)]
    values = [node.value for node in assigned if ast.unparse(node.targets[0]) == "__all__"]
    return [*ast.literal_eval(values[-1])] if values else []


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
        named = [entry for entry in torchvision_names() if entry.lower() == spec.lower()] if spec.isidentifier() else []
        if named:
            remedy = f"write torchvision:{named[0]}"
        elif is_cache(spec):
            remedy = f"write features:{spec} for this cache"
        elif is_data_set(spec):
            remedy = f"write hf:{spec} for this data set"
        elif spec and os.path.isdir(expanded(spec)):
            remedy = f"write folder:{spec} for a folder of images"
        elif Path(spec).suffix in (".npz", ".csv", ".parquet"):
            remedy = f"write {Path(spec).suffix[1:]}:{spec} for this file"
        raise SfumatoError(f"source {spec!r} is of an unknown kind", remedy)
    if bool(argument) != (kind.argument is not None) or (colon and kind.argument is None):
        lacks = f"lacks its {kind.argument}" if kind.argument else "takes no argument"
        raise SfumatoError(f"source {spec!r} {lacks}", f"write {name}{(kind.argument and f':{kind.argument}') or ''}")
    return name, argument
