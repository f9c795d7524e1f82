"""What was read of a source, in words for its owner's eyes."""

from __future__ import annotations

from sfumato.data import Source

SHOWN = 12
"""Classes whose numbers are named."""


def notes(source: Source) -> list[str]:
    """How the records were read, and how many training records each class has; nothing of published data."""
    if source.published or source.cache is not None or source.multilabel:
        return list(source.notes)
    return [*source.notes, f"read {per_class(source)} (private figures)"]


def per_class(source: Source) -> str:
    """The training records of each class, of many classes the first and the rarest.

    >>> import numpy as np
    >>> from sfumato.data import open_source
    >>> images, labels = np.zeros((60, 8, 8), np.uint8), np.arange(60) // 40
    >>> per_class(open_source((images, labels, images, labels), owner_key=bytes(32)))
    '60 training images: 0 40, 1 20'
    """
    counts = [int((source.train.labels == number).sum()) for number in range(len(source.classes))]
    named = [f"{name} {count:,}" for name, count in zip(source.classes, counts, strict=True)]
    what = "training texts" if source.tokens is not None else "training images"
    if len(named) > SHOWN:
        rarest = counts.index(min(counts))
        named = [*named[: SHOWN - 2], f"and {len(named) - SHOWN + 2} more classes, the rarest {named[rarest]}"]
    return f"{len(source.train):,} {what}: {', '.join(named)}"
