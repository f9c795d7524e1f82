"""What one kind of source hands back once it is read."""

from __future__ import annotations

from dataclasses import dataclass

from sfumato.data.file_records import FileRecords
from sfumato.data.records import Records
from sfumato.data.texts.records import TextRecords
from sfumato.data.texts.tokens import Tokens


@dataclass(frozen=True, kw_only=True, eq=False)
class Parts:
    """What one kind of source hands back.

    Args:
        train: the part to learn from.
        test: the part to measure on.
        classes: class names; a label is a position in it.
        classes_listed: whether somebody wrote the class list down (the owner or the file), so that a class without
            any image is meant; otherwise the list is what the labels show.
        parted: whether the parts were made beforehand; otherwise the keyed hash made them.
        size_rule: how the images' size came about, in words.
        cut: the share of an image that its middle square leaves out, in the middle of all images; 0 where that is not
            known.
        filtered: whether the set was filtered by looking at private data.
        left_out: the files from which no image could be read, where such may be left out.
        larger: the part to learn from with its images at `zoomed` pixels a side; None where that was not asked for,
            or where the originals are arrays that are no larger than the images are.
        tokens: how the records' texts became numbers, where they are texts.
    """

    train: Records | FileRecords | TextRecords
    test: Records | FileRecords | TextRecords
    classes: tuple[str, ...]
    classes_listed: bool
    parted: bool
    size_rule: str
    cut: float = 0.0
    filtered: bool = False
    left_out: tuple[str, ...] = ()
    larger: Records | FileRecords | None = None
    tokens: Tokens | None = None
