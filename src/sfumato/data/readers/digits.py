"""digits - the 1,797 handwritten digits included in scikit-learn. Nothing is downloaded."""

from __future__ import annotations

import functools
import hashlib
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from sfumato.data.declared import Order
from sfumato.data.parts import Parts
from sfumato.data.readers.numpy_archive import parts_of

SPLIT_SEED = b"sfumato digits split"
"""Prefix of the hashes that order the digits for the split. Public and fixed, so results are comparable."""

TEST_FRACTION = 0.2
"""Share of each class in the test part."""


def load(_: str, order: Order) -> Parts:
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
    found = find_spec("sklearn")
    file = Path((found and found.origin) or "").parent / "datasets" / "data" / "digits.csv.gz"
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
