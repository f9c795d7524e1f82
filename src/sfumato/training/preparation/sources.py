"""Sources from what Python has in memory: opened under the owner's own key."""

from __future__ import annotations

from typing import Any

from sfumato.data import Source, open_source
from sfumato.randomness import owner_key


def opened(given: Any, **facts: Any) -> Any:
    """A spelling or an opened source as it is; other data as a source: see `open_source`.

    Args:
        facts: what is declared of data from Python.
    """
    return given if isinstance(given, (str, Source)) else open_source(given, owner_key=owner_key(), **facts)


def from_arrays(
    images: Any,
    labels: Any,
    test_images: Any = None,
    test_labels: Any = None,
    *,
    classes: Any = None,
    whose: Any = None,
    test_whose: Any = None,
    **facts: Any,
) -> Source:
    """A source of arrays or tensors, under the owner's own key.

    Args:
        images: uint8, or numbers in [0, 1]: arrays (N, H, W) or (N, H, W, C), tensors (N, C, H, W), C = 1 or 3.
        labels: whole numbers from 0 or names (N,); or (N, L) of 0 and 1 for several labels.
        test_images, test_labels: the test part; without it a keyed hash of each image, or of its user, splits them.
        classes: the declared names of the classes.
        whose: of each image its user, text or whole numbers (N,).
        test_whose: the same of the test part.
        facts: what else is declared, as for `open_source`: `examples`, `users`, `size`, `public` and so on.

    **Guarantee.** That of `open_source`.

    Errors: `SfumatoError` for what is wrong with the data.

    >>> import numpy as np
    >>> images = np.random.default_rng(0).integers(0, 256, (200, 8, 8), np.uint8)
    >>> from_arrays(images, np.arange(200) % 2, examples=150, classes=["cat", "dog"]).examples
    150
    """
    part, beside = ("", {}) if test_images is None else ("_train", {"x_test": test_images, "y_test": test_labels})
    given = {f"x{part}": images, f"y{part}": labels, f"users{part}": whose, "users_test": test_whose, **beside}
    known = {name: one for name, one in given.items() if one is not None}
    return open_source(known, owner_key=owner_key(), classes=classes, **facts)


def from_dataset(data: Any, test: Any = None, **facts: Any) -> Source:
    """A source of a data set, under the owner's own key.

    Args:
        data: a map-style `torch.utils.data.Dataset` (torchvision's are such) whose items are pairs (image, label); a
            `Dataset` or `DatasetDict` of Hugging Face's `datasets`; or a pandas DataFrame with the columns path, label
            and perhaps user. It must give the same record each time, without random transforms.
        test: the test part, likewise; without it a keyed hash splits the records.
        facts: what is declared, as for `open_source`: `examples`, `classes`, `size`, `public` and so on.

    **Guarantee.** That of `open_source`.

    Errors: `SfumatoError` for what is wrong with the data.
    """
    return open_source(data if test is None else (data, test), owner_key=owner_key(), **facts)
