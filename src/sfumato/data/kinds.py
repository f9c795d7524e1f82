"""The kinds of sources, how to spell them, and checks that they exist, before anything is read.

torchvision's data sets with one class per image are recognised by their signatures. Those are parsed from torchvision's
files, since importing it takes seconds.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sfumato._checks import SfumatoError
from sfumato.data.classes import refuse_unwritable
from sfumato.data.declared import kinds_with
from sfumato.data.paths import expanded, hugging_face_error, is_cache, is_data_set

CHOSEN = {"EMNIST": {"split": "balanced"}}
"""Required arguments besides the root."""
_SUCH_AS = "choose one of torchvision.datasets with classes, such as MNIST, CIFAR10, Food101 or OxfordIIITPet"
_OTHERS = {
    "ImageFolder": "write folder:PATH for a folder of class folders",
    "DatasetFolder": "write folder:PATH for a folder of class folders",
    **dict.fromkeys(("LSUNClass", "SBU", "WIDERFace", "LFWPairs"), ""),
}
"""Data sets whose signature fits, but whose items do not, with a remedy."""


def torchvision_sets() -> dict[str, type]:
    """torchvision's data sets of images with classes, by their signatures: only `root` is required, labels can be
    transformed, and image and label are not transformed jointly, as for boxes and masks."""
    from torchvision import datasets

    found = {name: getattr(datasets, name) for name in datasets.__all__}
    kinds = {name: kind for name, kind in found.items() if isinstance(kind, type)}
    return {name: kind for name, kind in kinds.items() if _has_classes(name, _required_parameters(parameters(kind)))}


def torchvision_names() -> list[str]:
    """The names of these data sets without importing torchvision."""
    return [name for name, known in signatures().items() if _has_classes(name, known)]


def _has_classes(name: str, known: Mapping[str, bool]) -> bool:
    """Whether a data set has classes, by its arguments and whether each is required."""
    required = {one for one, is_required in known.items() if is_required}
    joint = "transforms" in known and "target_types" not in known
    alone = required - {*CHOSEN.get(name, ())} == {"root"}
    return name not in _OTHERS and alone and "target_transform" in known and not joint


def _required_parameters(known: Mapping[str, inspect.Parameter]) -> dict[str, bool]:
    return {name: parameter.default is parameter.empty for name, parameter in known.items()}


def parameters(kind: type) -> Mapping[str, inspect.Parameter]:
    """The arguments of a class, including those of its base if it passes on `**kwargs`."""
    known = dict(inspect.signature(kind).parameters)
    passed_on = [name for name, one in known.items() if one.kind is one.VAR_KEYWORD]
    for name in passed_on:
        del known[name]
    return {**parameters(kind.__bases__[0]), **known} if passed_on else known


def torchvision_set(name: str) -> tuple[str, type]:
    """The name of a data set as torchvision spells it, and its class. Data sets without classes are refused."""
    from torchvision import datasets

    with_classes = torchvision_sets()
    for one, kind in with_classes.items():
        if one.lower() == name.lower():
            return one, kind
    other = next((one for one in datasets.__all__ if one.lower() == name.lower()), None)
    if other is None:
        near = difflib.get_close_matches(name, with_classes, n=1)
        remedy = f"did you mean torchvision:{near[0]}" if near else _SUCH_AS
        raise SfumatoError(f"{'torchvision:' + name!r} is not known", remedy)
    remedy = _OTHERS.get(other) or _SUCH_AS
    raise SfumatoError(f"torchvision:{other} is not a data set of images with one class each", remedy)


def signatures() -> dict[str, Mapping[str, bool]]:
    """The arguments of each class in `torchvision.datasets`, in order, and whether each is required.

    `**kwargs` are those of the first base. Empty if torchvision or one of its files is missing.
    """
    found = find_spec("torchvision")
    if found is None or not found.submodule_search_locations:
        return {}
    folder = Path(found.submodule_search_locations[0]) / "datasets"
    try:
        listed = ast.parse((folder / "__init__.py").read_bytes()).body
        files = {node.module for node in listed if isinstance(node, ast.ImportFrom) and node.level == 1}
        parsed = [ast.parse((folder / f"{file}.py").read_bytes()).body for file in sorted(filter(None, files))]
    except (OSError, SyntaxError):
        return {}
    classes = {one.name: one for body in parsed for one in body if isinstance(one, ast.ClassDef)}
    return {name: dict(_arguments(name, classes)) for name in _exported_names(listed) if name in classes}


def _exported_names(body: list[ast.stmt]) -> list[str]:
    """The names in `__all__`."""
    values = [one.value for one in body if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "__all__"]
    return [*ast.literal_eval(values[-1])] if values else []


def _arguments(name: str, classes: Mapping[str, ast.ClassDef]) -> Iterator[tuple[str, bool]]:
    """The arguments of the class with this name; none for a class from elsewhere."""
    if (kind := classes.get(name)) is None:
        return
    base = ast.unparse(kind.bases[0]) if kind.bases else ""
    own = next((one for one in kind.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"), None)
    if own is None:
        yield from _arguments(base, classes)
        return
    if own.args.kwarg is not None:
        yield from _arguments(base, classes)
    plain = [*own.args.posonlyargs, *own.args.args][1:]  # without self
    given = len(plain) - min(len(own.args.defaults), len(plain))
    yield from ((one.arg, place < given) for place, one in enumerate(plain))
    yield from ((one.arg, value is None) for one, value in zip(own.args.kwonlyargs, own.args.kw_defaults, strict=True))


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
        """Reads the source, as its reader does: `Parts` of what an `Order` asks for."""
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
        made = "" if kind.reader else ", or make it with sfumato features SOURCE --output PATH"
        raise SfumatoError(
            f"{kind.called} {str(expanded(argument))!r} does not exist", f"correct the path after {name}:{made}"
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
        named = [known for known in torchvision_names() if known.lower() == spec.lower()] if spec.isidentifier() else []
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
        elif spec.lower().endswith((".zip", ".tar", ".tar.gz", ".tgz")):
            remedy = "unpack it, and name what is in it, such as folder:PATH"
        elif Path(spec).suffix.lower() in (".png", ".jpg", ".jpeg", ".tif", ".tiff"):
            remedy = "an image is not a data set: give the folder that holds the class folders, folder:PATH"
        elif Path(spec).suffix in (".npz", ".csv", ".parquet"):
            remedy = f"write {Path(spec).suffix[1:]}:{spec} for this file"
        raise SfumatoError(f"source {spec!r} is of an unknown kind", remedy)
    if kind.argument is None and colon:
        raise SfumatoError(f"source {spec!r} takes no argument", f"write {name}")
    if kind.argument is not None and not argument:
        raise SfumatoError(f"source {spec!r} lacks its {kind.argument}", f"write {name}:{kind.argument}")
    return name, argument
