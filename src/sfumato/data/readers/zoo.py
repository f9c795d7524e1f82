"""torchvision:NAME - the published data sets MNIST, FashionMNIST, KMNIST, EMNIST, CIFAR10 and CIFAR100."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from sfumato._checks import SfumatoError
from sfumato.data.classes import renumbered
from sfumato.data.identity.codes import codes_of
from sfumato.data.images.decoding import larger, prepare_array
from sfumato.data.parts import Parts
from sfumato.data.records import Declared, Records

NAMES = ("MNIST", "FashionMNIST", "KMNIST", "EMNIST", "CIFAR10", "CIFAR100")


def load(name: str, declared: Declared) -> Parts:
    """Read a data set with its official train and test parts, through torchvision's own loader.

    EMNIST is its `balanced` split (47 classes), turned upright: its files hold every image mirrored at the diagonal.
    """
    known = {known.lower(): known for known in NAMES}
    if name.lower() not in known:
        raise SfumatoError(f"{'torchvision:' + name!r} is not known", f"choose one of {', '.join(NAMES)}")
    name = known[name.lower()]
    root = Path(declared.root).expanduser() if declared.root else default_root()
    train, test = (_dataset(name, root, train=train, download=declared.download) for train in (True, False))
    names = tuple(str(digit) for digit in range(10)) if name == "MNIST" else tuple(train.classes)

    def originals(dataset: Any) -> np.ndarray:
        images = np.asarray(dataset.data)
        if images.ndim == 3:
            images = images[..., np.newaxis]
        if name == "EMNIST":
            images = images.swapaxes(1, 2)
        return np.ascontiguousarray(images)

    def part(dataset: Any) -> Records:
        images = originals(dataset)
        size, channels = declared.size or images.shape[1], declared.channels or images.shape[3]
        labels = np.asarray(dataset.targets).astype(np.int64)
        return Records(
            images=prepare_array(images, size=size, channels=channels),
            labels=renumbered(labels, names, declared.classes, f"torchvision:{name}"),
            codes=codes_of(declared.owner_key, images, images),
        )

    first = part(train)
    return Parts(
        train=first,
        test=part(test),
        classes=declared.classes or names,
        classes_listed=True,
        parted=True,
        size_rule="declared" if declared.size else "the data set's own",
        larger=larger(first, originals(train), declared),
    )


def default_root() -> Path:
    """Where published data sets are kept when no root is given: a folder in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "sfumato" / "torchvision"


def _dataset(name: str, root: Path, *, train: bool, download: bool) -> Any:
    from torchvision import datasets

    options = {"split": "balanced"} if name == "EMNIST" else {}
    try:
        return getattr(datasets, name)(root, train=train, download=download, **options)
    except (RuntimeError, OSError, ValueError, EOFError) as problem:
        if "not found" in str(problem) and not download:
            raise SfumatoError(
                f"torchvision:{name} is not in {str(root)!r}, or is damaged there",
                "pass `download=True` to fetch it, or `root` with the folder that holds it",
            ) from None
        reason = " ".join(str(problem).split()) or type(problem).__name__
        if download:
            raise SfumatoError(
                f"torchvision:{name} could not be fetched into {str(root)!r} ({reason})",
                "check the connection and the folder, or pass `root` with a folder that holds the data set",
            ) from None
        raise SfumatoError(
            f"torchvision:{name} could not be read in {str(root)!r} ({reason})",
            "delete its files and pass `download=True` to fetch them again",
        ) from None
