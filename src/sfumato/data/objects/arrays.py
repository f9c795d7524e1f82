"""Arrays and tensors from Python, as an archive would hold them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sfumato._checks import SfumatoError
from sfumato.data import classes as class_lists
from sfumato.data.declared import Order
from sfumato.data.parts import Parts
from sfumato.data.readers.arrays import of_arrays
from sfumato.data.spellings import Spellings

NAMES = {2: ("x", "y"), 4: ("x_train", "y_train", "x_test", "y_test")}
"""What an archive calls so many arrays."""
WHERE = "the arrays"


def is_array(given: Any) -> bool:
    """Whether it is an array, a tensor, or a list of numbers or names, as labels may be."""
    if isinstance(given, (list, tuple)):
        return bool(given) and all(isinstance(one, (str, int, np.integer)) for one in given)
    return hasattr(given, "__array__") and hasattr(given, "shape") and hasattr(given, "dtype")


def load(given: Mapping[str, Any], order: Order) -> Parts:
    """Both parts of arrays and tensors, which are read as those of an archive are (`readers.arrays.load`).

    Images of tensors are (N, C, H, W) where C is 1 or 3, else (N, H, W, C) or (N, H, W); those of arrays the other way
    round. Labels may be names.
    """
    arrays = {name: _images(one, name) if name.startswith("x") else array_of(one, name) for name, one in given.items()}
    spoken = {name: one for name, one in arrays.items() if name.startswith("y") and one.dtype.kind in "UO"}
    if spoken:
        texts = {name: _texts(one, name, order.names) for name, one in spoken.items()}
        found = class_lists.in_order({text for some in texts.values() for text in some})
        names = order.declared.labels.classes or found
        for text in found:
            class_lists.require_declared(text, names, f"{WHERE} hold", "the images")
        places = {name: place for place, name in enumerate(names)}
        arrays |= {name: np.array([places[text] for text in some], np.int64) for name, some in texts.items()}
        if len(names) > 1:
            arrays["classes"] = np.array(names, np.str_)
    return of_arrays(arrays, order, where=WHERE)


def array_of(given: Any, name: str) -> np.ndarray:
    """The array in memory that it is, wherever a tensor lies."""
    if hasattr(given, "detach"):
        given = given.detach().cpu()
    try:
        return np.asarray(given)
    except (TypeError, ValueError, RuntimeError) as problem:
        what = f"{name} of {WHERE} is no array ({problem})"
        raise SfumatoError(what, "give a numpy array, or a tensor of uint8 or float32") from None


def _images(given: Any, name: str) -> np.ndarray:
    return channels_last(array_of(given, name), tensors=hasattr(given, "detach"))


def channels_last(images: np.ndarray, *, tensors: bool) -> np.ndarray:
    """Images (..., H, W, C) of those whose channels stand before the pixels, as is the custom for tensors.

    >>> channels_last(np.zeros((5, 3, 8, 8)), tensors=True).shape
    (5, 8, 8, 3)
    """
    first, last = images.ndim > 2 and images.shape[-3] in (1, 3), images.ndim > 2 and images.shape[-1] in (1, 3)
    return np.moveaxis(images, -3, -1) if first and (tensors or not last) else images


def _texts(labels: np.ndarray, name: str, spellings: Spellings) -> list[str]:
    texts = labels.tolist()
    if labels.ndim != 1 or not all(isinstance(text, str) and text.strip() for text in texts):
        raise SfumatoError(
            f"{name} of {WHERE} holds something else than names of classes",
            "give one name for each image, or whole numbers from 0",
        )
    return [spellings.of("class", text.strip()) for text in texts]
