"""Published data sets: digits, the 1,797 handwritten digits included in scikit-learn (nothing is downloaded), and
torchvision:NAME, torchvision's data sets with an image and a class per record."""

from __future__ import annotations

import difflib
import functools
import hashlib
import inspect
import os
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from sfumato._checks import SfumatoError
from sfumato.data.classes import part_by_name
from sfumato.data.declared import Order
from sfumato.data.readers import python_data
from sfumato.data.readers.arrays import parts_of
from sfumato.data.source import Parts

SPLIT_SEED = b"sfumato digits split"
"""Prefix of the hashes that order the digits for the split. Public and fixed, so results are comparable."""

TEST_FRACTION = 0.2
"""Share of each class in the test part."""


def load_digits(_: str, order: Order) -> Parts:
    """Reads the test part of UCI's "Optical recognition of handwritten digits" (Alpaydin and Kaynak 1998), 8 x 8 grey.

    The data are published, so the split is not secret: it is fixed, with a fifth of each class in the test part (1,438
    training and 359 test images). Pixels 0..16 become 0..255.
    """
    table = _table()
    images = np.rint(table[:, :-1] * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8, 1)
    labels = table[:, -1].astype(np.int64)
    names = tuple(str(number) for number in range(10))
    test = in_public_test(labels)
    sides = {
        name: {"images": images[chosen], "labels": labels[chosen], "rows": np.flatnonzero(chosen)}
        for name, chosen in (("train", ~test), ("test", test))
    }
    return parts_of(sides, order, names=names, where="digits")


@functools.cache
def _table() -> np.ndarray:
    """Pixels 0..16 and the label of each image, float64 (N, 65), read only."""
    # Reads scikit-learn's file directly, since importing scikit-learn takes longer than a small run.
    package = find_spec("sklearn")
    file = Path((package and package.origin) or "").parent / "datasets" / "data" / "digits.csv.gz"
    if file.is_file():
        table = np.loadtxt(file, delimiter=",")
    else:
        from sklearn.datasets import load_digits

        pixels, targets = load_digits(return_X_y=True)
        table = np.column_stack([np.asarray(pixels), np.asarray(targets)])
    table.setflags(write=False)
    return table


def in_public_test(labels: np.ndarray) -> np.ndarray:
    """Which examples are in the test part, bool (N,): a fifth of each class, the first by a fixed hash of the index."""
    # Hashes, since shuffles by seed may change between NumPy versions.
    order = [hashlib.sha256(SPLIT_SEED + index.to_bytes(8, "big")).digest() for index in range(len(labels))]
    test = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        members = sorted(np.flatnonzero(labels == label).tolist(), key=order.__getitem__)
        test[members[: round(TEST_FRACTION * len(members))]] = True
    return test


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

    exported = {name: getattr(datasets, name) for name in datasets.__all__}
    return {name: kind for name, kind in exported.items() if isinstance(kind, type) and _has_classes(name, kind)}


def _has_classes(name: str, kind: type) -> bool:
    """Whether a data set has classes, by its arguments and which of them are required."""
    accepted = parameters(kind)
    required = {argument for argument, parameter in accepted.items() if parameter.default is parameter.empty}
    joint = "transforms" in accepted and "target_types" not in accepted
    alone = required - {*CHOSEN.get(name, ())} == {"root"}
    return name not in _OTHERS and alone and "target_transform" in accepted and not joint


def parameters(kind: type) -> Mapping[str, inspect.Parameter]:
    """The arguments of a class, including those of its base if it passes on `**kwargs`."""
    accepted = dict(inspect.signature(kind).parameters)
    passed_on = [name for name, parameter in accepted.items() if parameter.kind is parameter.VAR_KEYWORD]
    for name in passed_on:
        del accepted[name]
    return {**parameters(kind.__bases__[0]), **accepted} if passed_on else accepted


def torchvision_set(name: str) -> tuple[str, type]:
    """The name of a data set as torchvision spells it, and its class. Data sets without classes are refused."""
    from torchvision import datasets

    with_classes = torchvision_sets()
    for spelling, kind in with_classes.items():
        if spelling.lower() == name.lower():
            return spelling, kind
    other = next((spelling for spelling in datasets.__all__ if spelling.lower() == name.lower()), None)
    if other is None:
        near = difflib.get_close_matches(name, with_classes, n=1)
        remedy = f"did you mean torchvision:{near[0]}" if near else _SUCH_AS
        raise SfumatoError(f"{'torchvision:' + name!r} is not known", remedy)
    remedy = _OTHERS.get(other) or _SUCH_AS
    raise SfumatoError(f"torchvision:{other} is not a data set of images with one class each", remedy)


IN_ARRAYS = ("MNIST", "FashionMNIST", "KMNIST", "EMNIST", "CIFAR10", "CIFAR100")
"""Data sets that torchvision holds in one array."""
_TEST_SPLITS = ("test", "val", "valid")
"""Names of the test part, in order of preference (`test_part`)."""
_ABSENT = re.compile("not found|does not exist|is not present")


def load_torchvision(name: str, order: Order) -> Parts:
    """Reads a data set with its official train and test parts, by torchvision's loader.

    Without a test part the validation part is used; otherwise validation is ignored. A data set without parts is split
    by a keyed hash. EMNIST is its `balanced` split (47 classes), transposed, since its files store every image mirrored
    at the diagonal.
    """
    name, kind = torchvision_set(name)
    where, loading = f"torchvision:{name}", order.declared.loading
    root = Path(loading.root).expanduser() if loading.root else default_root()
    sets = _sets(name, kind, root, download=loading.download)
    if name not in IN_ARRAYS:
        return python_data.load_sets(sets, order, where)
    order.declared.labels.refuse_columns(where)
    names = tuple(str(digit) for digit in range(10)) if name == "MNIST" else tuple(sets["train"].classes)

    def originals(dataset: Any) -> np.ndarray:
        images = np.asarray(dataset.data)
        if images.ndim == 3:
            images = images[..., np.newaxis]
        if name == "EMNIST":
            images = images.swapaxes(1, 2)
        return np.ascontiguousarray(images)

    sides = {
        str(side): {"images": originals(dataset), "labels": np.asarray(dataset.targets).astype(np.int64)}
        for side, dataset in sets.items()
    }
    return parts_of(sides, order, names=names, where=where)


def default_root() -> Path:
    """Default folder of published data sets, in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "sfumato" / "torchvision"


def _sets(name: str, kind: type, root: Path, *, download: bool) -> dict[str | None, Any]:
    """The training and test sets, by part; a single set with key None if there are no parts."""
    accepted = parameters(kind)
    options = CHOSEN.get(name, {}) | ({"download": download} if "download" in accepted else {})

    def open_part(**part: Any) -> Any:
        return _create(name, kind, root, options | part)

    if "train" in accepted:
        return {"train": open_part(train=True), "test": open_part(train=False)}
    if "split" not in accepted:
        return {None: open_part()}
    train = str(accepted["split"].default)
    sets: dict[str | None, Any] = {"train": open_part(split=train if train.startswith("train") else "train")}
    tests = ((part_by_name(split), open_part(split=split)) for split in _TEST_SPLITS)
    return sets | dict([next((part, test) for part, test in tests if test is not None)])


def _create(name: str, kind: type, root: Path, options: Mapping[str, Any]) -> Any:
    """The data set; None if it has no such split."""
    try:
        return kind(root, **options)
    except ImportError as problem:
        raise SfumatoError(
            f"torchvision:{name} needs a package that is not installed ({problem})", "install it"
        ) from None
    except (RuntimeError, OSError, ValueError, EOFError) as problem:
        reason = " ".join(str(problem).split()) or type(problem).__name__
        if "for argument split" in reason:
            return None
        fault, fetch = f"could not be read in {str(root)!r} ({reason})", "put its files there yourself"
        if options.get("download"):
            fetch = "check the connection and the folder"
        elif isinstance(problem, FileNotFoundError) or _ABSENT.search(reason) is not None:
            fault = f"is not in {str(root)!r}, or is damaged there"
        if options.get("download") is False:
            fetch = "pass `download=True` to fetch it"
        raise SfumatoError(
            f"torchvision:{name} {fault}", f"{fetch}, or pass `root` with the folder that holds it"
        ) from None
