"""The published data sets that torchvision knows: which of them are images with a class each, by their signatures.
These can be read from its files, since importing them takes seconds."""

from __future__ import annotations

import ast
import difflib
import inspect
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from sfumato._checks import SfumatoError

CHOSEN = {"EMNIST": {"split": "balanced"}}
"""What must be given besides the root."""
_SUCH_AS = "choose one of torchvision.datasets with classes, such as MNIST, CIFAR10, Food101 or OxfordIIITPet"
_OTHERS = {
    "ImageFolder": "write folder:PATH for a folder of class folders",
    "DatasetFolder": "write folder:PATH for a folder of class folders",
    **dict.fromkeys(("LSUNClass", "SBU", "WIDERFace", "LFWPairs"), ""),
}
"""Of classes' kind by their signature, and not by what they give; with what to do."""


def names() -> dict[str, type]:
    """torchvision's data sets of images with classes, as their signatures show: `root` is all that must be given, the
    label may be transformed, and image and label are not transformed together, as boxes and masks are."""
    from torchvision import datasets

    found = {name: getattr(datasets, name) for name in datasets.__all__}
    kinds = {name: kind for name, kind in found.items() if isinstance(kind, type)}
    return {name: kind for name, kind in kinds.items() if _has_classes(name, _required(parameters(kind)))}


def spellings() -> list[str]:
    """The same names without importing torchvision, for a shell that waits for them."""
    return [name for name, known in signatures().items() if _has_classes(name, known)]


def _has_classes(name: str, known: Mapping[str, bool]) -> bool:
    """By what a class takes, and whether each must be given."""
    required = {one for one, is_required in known.items() if is_required}
    joint = "transforms" in known and "target_types" not in known
    alone = required - {*CHOSEN.get(name, ())} == {"root"}
    return name not in _OTHERS and alone and "target_transform" in known and not joint


def _required(known: Mapping[str, inspect.Parameter]) -> dict[str, bool]:
    return {name: parameter.default is parameter.empty for name, parameter in known.items()}


def parameters(kind: type) -> Mapping[str, inspect.Parameter]:
    """What a class takes; where it passes the rest on, what its base takes as well."""
    known = dict(inspect.signature(kind).parameters)
    passed_on = [name for name, one in known.items() if one.kind is one.VAR_KEYWORD]
    for name in passed_on:
        del known[name]
    return {**parameters(kind.__bases__[0]), **known} if passed_on else known


def known(name: str) -> tuple[str, type]:
    """The name of a data set as torchvision spells it, and its class; refused by name where it has no classes."""
    from torchvision import datasets

    with_classes = names()
    for one, kind in with_classes.items():
        if one.lower() == name.lower():
            return one, kind
    other = next((one for one in datasets.__all__ if one.lower() == name.lower()), None)
    if other is None:
        near = difflib.get_close_matches(name, with_classes, n=1)
        remedy = f"did you mean torchvision:{near[0]}" if near else _SUCH_AS
        raise SfumatoError(f"{'torchvision:' + name!r} is not known", remedy)
    remedy = _OTHERS.get(other) or _SUCH_AS
    raise SfumatoError(f"torchvision:{other} is no data set of images with one class each", remedy)


def signatures() -> dict[str, Mapping[str, bool]]:
    """Of each class in `torchvision.datasets`, in its order: its arguments, and whether each must be given.

    What a class passes on (`**kwargs`) its first base takes. Empty where torchvision, or a file of it, is not there.
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
    return {name: dict(_arguments(name, classes)) for name in _offered(listed) if name in classes}


def _offered(body: list[ast.stmt]) -> list[str]:
    """What `__all__` names."""
    values = [one.value for one in body if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "__all__"]
    return [*ast.literal_eval(values[-1])] if values else []


def _arguments(name: str, classes: Mapping[str, ast.ClassDef]) -> Iterator[tuple[str, bool]]:
    """Of the class of this name; nothing of one from elsewhere."""
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
