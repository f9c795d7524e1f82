"""The published data sets that torchvision knows: which of them are images with a class each, by their signatures."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

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
    return {name: kind for name, kind in found.items() if name not in _OTHERS and _has_classes(name, kind)}


def spelt(name: str) -> str | None:
    """The name as torchvision spells it, where it has such a data set with classes. Importing it takes seconds: its
    listing is read first, as a text."""
    found = find_spec("torchvision")
    for folder in (found and found.submodule_search_locations) or ():
        listing = Path(folder, "datasets", "__init__.py")
        if name.isidentifier() and listing.is_file() and name.lower() in listing.read_text("utf-8").lower():
            return next((one for one in names() if one.lower() == name.lower()), None)
    return None


def _has_classes(name: str, kind: Any) -> bool:
    if not isinstance(kind, type):
        return False
    known = parameters(kind)
    required = {one for one, parameter in known.items() if parameter.default is parameter.empty}
    joint = "transforms" in known and "target_types" not in known
    return required - {*CHOSEN.get(name, ())} == {"root"} and "target_transform" in known and not joint


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
