"""torchvision:NAME - the published data sets MNIST, FashionMNIST, KMNIST, EMNIST, CIFAR10 and CIFAR100."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from sfumato._checks import SfumatoError
from sfumato.data.declared import Order
from sfumato.data.parts import Parts
from sfumato.data.readers.from_arrays import parts_of

NAMES = ("MNIST", "FashionMNIST", "KMNIST", "EMNIST", "CIFAR10", "CIFAR100")


def load(name: str, order: Order) -> Parts:
    """Read a data set with its official train and test parts, through torchvision's own loader.

    EMNIST is its `balanced` split (47 classes), turned upright: its files hold every image mirrored at the diagonal.
    """
    known = {known.lower(): known for known in NAMES}
    if name.lower() not in known:
        raise SfumatoError(f"{'torchvision:' + name!r} is not known", f"choose one of {', '.join(NAMES)}")
    name = known[name.lower()]
    loading = order.declared.loading
    root = Path(loading.root).expanduser() if loading.root else default_root()
    train, test = (_dataset(name, root, train=train, download=loading.download) for train in (True, False))
    names = tuple(str(digit) for digit in range(10)) if name == "MNIST" else tuple(train.classes)

    def originals(dataset: Any) -> np.ndarray:
        images = np.asarray(dataset.data)
        if images.ndim == 3:
            images = images[..., np.newaxis]
        if name == "EMNIST":
            images = images.swapaxes(1, 2)
        return np.ascontiguousarray(images)

    sides = {
        side: {"images": originals(dataset), "labels": np.asarray(dataset.targets).astype(np.int64)}
        for side, dataset in (("train", train), ("test", test))
    }
    return parts_of(sides, order, names=names, where=f"torchvision:{name}")


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
        reason = " ".join(str(problem).split()) or type(problem).__name__
        if "not found" in str(problem) and not download:
            what = f"is not in {str(root)!r}, or is damaged there"
            remedy = "pass `download=True` to fetch it, or `root` with the folder that holds it"
        elif download:
            what = f"could not be fetched into {str(root)!r} ({reason})"
            remedy = "check the connection and the folder, or pass `root` with a folder that holds the data set"
        else:
            what = f"could not be read in {str(root)!r} ({reason})"
            remedy = "delete its files and pass `download=True` to fetch them again"
        raise SfumatoError(f"torchvision:{name} {what}", remedy) from None
