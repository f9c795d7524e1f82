"""Labelled image files, however they were listed, to two parts of records: in memory, or left in their files."""

from __future__ import annotations

import os
import statistics
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sfumato._checks import SfumatoError
from sfumato.data import classes as class_lists
from sfumato.data.declared import Declared, Order, Pixels, check_size
from sfumato.data.identity.codes import as_array, pixel_code, stored_code, user_code
from sfumato.data.images import decoding as image_files
from sfumato.data.parts import Parts, Reading, RecordSets
from sfumato.data.readers.dicom import BY_PATIENT, patient
from sfumato.data.readers.rows import Listed, columns_of, reading_of, refuse_unwritable_names
from sfumato.data.readers.whose import BY_CLASS, check_by_class
from sfumato.data.records import FileRecords, Records, in_threads

MEMORY_SHARE = 0.5
"""How much of the machine's memory images may take; more of them stay in their files."""


@dataclass(frozen=True, kw_only=True)
class Entry(Listed):
    """One labelled image file, which lies at `path`."""

    path: Path


def load_files(entries: Sequence[Entry], order: Order, *, where: str, unreadable: Sequence[Path] = ()) -> Parts:
    """Put each record in its part, in the order of `entries`, and decode it where memory can hold them all.

    Args:
        entries: at least one file; if any names its part, user, group or time, all do, and all times are of one kind.
        order: with `user_from` "dicom" each file's patient is its user, by a keyed code, and with "class" its class.
            Size and channels that were not declared are read from the files' headers: the median of the shorter sides
            (at most 224 pixels), and grey if every file is grey.
        where: what to call the data set in an error.
        unreadable: files of the set that are none of these; with `skip_unreadable` those that are broken are added.
    """
    declared = order.declared
    refuse_unwritable_names(entries)
    for entry in entries:
        class_lists.refuse_unwritable(str(entry.path), "image", longest=None)
    if declared.people.user_from == BY_CLASS:
        check_by_class(declared, where, has_own_split=entries[0].part is not None)
        entries = [replace(entry, user=str(entry.label)) for entry in entries]
    classes = declared.labels.label_columns or _classes(entries, declared, where)
    with image_files.quiet_decoder():
        if declared.loading.skip_unreadable:
            broken = set(_unreadable(entries, declared.pixels))
            entries, unreadable = [one for one in entries if one.path not in broken], [*unreadable, *sorted(broken)]
            if not entries:
                raise SfumatoError(f"{where} holds no image that can be read", "give images")
        if declared.people.user_from == BY_PATIENT:
            entries = _of_patients(entries, order.owner_key)
        size, channels, size_rule, cropped_share = _shape(entries, declared.pixels)
        records = _records(entries, order, classes, size, channels)
    return Parts(
        records=records,
        classes=classes,
        reading=Reading(
            size_rule=size_rule,
            cropped_share=cropped_share,
            unreadable_files=tuple(map(str, unreadable)),
            **reading_of(entries, order),
        ),
    )


def _classes(entries: Sequence[Entry], declared: Declared, where: str) -> tuple[str, ...]:
    """The class list, as declared or as it is read; every entry's class is in it."""
    classes = declared.labels.classes or class_lists.in_order(str(entry.label) for entry in entries)
    for entry in entries:
        class_lists.require_declared(entry.label, classes, f"{str(entry.path)!r} has", "the file")
    if len(classes) == 1 and not declared.purpose.open_set:
        raise SfumatoError(f"{where} holds only one class, {classes[0]!r}", "give images of at least two classes")
    return classes


def _unreadable(entries: Sequence[Entry], pixels: Pixels) -> list[Path]:
    """The files from which no image can be read. Each is judged by itself, so another record more changes none."""

    def judged(entry: Entry) -> bool:
        try:
            content = image_files.read_bytes(entry.path)
            image_files.decode_whole(
                content, entry.path, sizes=(image_files.SIZE_CAP,), channels=3, levels=pixels.levels
            )
        except image_files.UnreadableError:
            return True
        return False

    return [entry.path for entry, odd in zip(entries, in_threads(judged, entries), strict=True) if odd]


def _of_patients(entries: Sequence[Entry], owner_key: bytes) -> list[Entry]:
    """The files with their patients' codes as users: the identifiers themselves are kept nowhere."""

    def whose(entry: Entry) -> str:
        content = image_files.read_bytes(entry.path)
        with image_files.refusals(entry.path):
            return user_code(owner_key, patient(content, f"image {str(entry.path)!r}"))

    return [replace(entry, user=code) for entry, code in zip(entries, in_threads(whose, entries), strict=True)]


def _shape(entries: Sequence[Entry], pixels: Pixels) -> tuple[int, int, str, float]:
    """Size, channels, the size's rule, and the share that a middle square leaves out (`Reading.cropped_share`)."""
    if pixels.size is not None and pixels.channels is not None:
        return pixels.size, pixels.channels, "declared", 0.0
    levels = pixels.levels

    def header(entry: Entry) -> image_files.Header:
        return image_files.header(image_files.read_bytes(entry.path), entry.path, levels=levels)

    headers = list(in_threads(header, entries))
    channels = pixels.channels or (1 if all(found.grey for found in headers) else 3)
    cropped = statistics.median(1 - found.shorter_side / found.longer_side for found in headers)
    if pixels.size is not None:
        return pixels.size, channels, "declared", cropped
    sides = [found.shorter_side for found in headers]
    size = min(round(statistics.median(sides)), image_files.SIZE_CAP)
    rule = f"the median of the images' shorter sides, at most {image_files.SIZE_CAP} pixels"
    return check_size(size, "declare a size for the images to be brought to"), channels, rule, cropped


def _records(entries: Sequence[Entry], order: Order, classes: tuple[str, ...], size: int, channels: int) -> RecordSets:
    """Training part, test part, and the larger training images where they are wanted."""
    side = order.declared.purpose.larger_side(size) or 0
    levels = order.declared.pixels.levels
    held = len(entries) * (size * size + side * side) * channels <= MEMORY_SHARE * memory()

    def one(entry: Entry) -> tuple[list[np.ndarray], bytes, bool]:
        content = image_files.read_bytes(entry.path)
        is_test = entry.in_test(content, order)
        sides = (size, side) if side and not is_test else (size,)
        found, whole = image_files.decode_whole(
            content, entry.path, sizes=sides if held else (), channels=channels, levels=levels
        )
        own = stored_code(order.owner_key, content)
        return found, own + (own if whole is None else pixel_code(order.owner_key, whole)), is_test

    images = np.empty((len(entries) if held else 0, size, size, channels), np.uint8)
    zoomed = np.empty((len(entries) if held and side else 0, side, side, channels), np.uint8)
    train: list[tuple[Entry, bytes]] = []
    test: list[tuple[Entry, bytes]] = []
    # Training images fill the array from its start and test images from its end: no second copy of the whole.
    for index, (found, own, is_test) in enumerate(in_threads(one, entries, order.progress)):
        if held:
            images[-1 - len(test) if is_test else len(train)] = found[0]
        if len(found) > 1:
            zoomed[len(train)] = found[1]
        (test if is_test else train).append((entries[index], own))
    several = order.declared.labels.label_columns is not None
    known = [_known(members, classes, several=several) for members in (train, test)]
    if held:
        both = (images[: len(train)], images[len(train) :][::-1].copy())
        first, second = (Records(images=some, **about) for some, about in zip(both, known, strict=True))
        return RecordSets(
            train=first, test=second, zoomed=replace(first, images=zoomed[: len(train)]) if side else None
        )
    # What decoders say about odd metadata, once for all: readers run beside other work, where no filter can be set.
    warnings.filterwarnings("ignore", category=UserWarning, module="PIL|pydicom")
    left, right = (FileRecords(**about, size=size, channels=channels, levels=levels) for about in known)
    return RecordSets(train=left, test=right, zoomed=replace(left, size=side) if side else None)


def _known(members: Sequence[tuple[Entry, bytes]], classes: tuple[str, ...], *, several: bool) -> dict[str, Any]:
    """Everything about the files of one part but their images."""
    entries = [entry for entry, _ in members]
    return {
        **columns_of(entries, classes, several=several),
        "files": np.array([str(entry.path) for entry in entries], dtype=np.str_),
        "codes": as_array(own for _, own in members),
    }


def memory() -> int:
    """Bytes of memory that the machine has; a great many where the system doesn't say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 1 << 62
