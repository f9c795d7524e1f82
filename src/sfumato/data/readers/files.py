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
from sfumato.data.clock import TimeStamp
from sfumato.data.file_records import FileRecords, in_threads
from sfumato.data.identity.codes import as_array, pixel_code, stored_code, user_code
from sfumato.data.images import decoding as image_files
from sfumato.data.parts import Parts
from sfumato.data.readers.dicom import BY_PATIENT, patient
from sfumato.data.records import Declared, Records
from sfumato.data.subsets.split import record_in_test

MEMORY_SHARE = 0.5
"""How much of the machine's memory images may take; more of them stay in their files."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One labelled image file.

    Args:
        path: where the file lies.
        label: its class's name; or 0 or 1 for each of the source's labels.
        part: "train", "test", or None to let the keyed hash decide.
        user: whose image it is, where that is known.
        group: the public group that the user belongs to, likewise.
        time: its own time stamp, likewise.
        filtered: whether it stands in a list that was filtered by looking at private data.
    """

    path: Path
    label: str | tuple[int, ...]
    part: str | None = None
    user: str | None = None
    group: str | None = None
    time: TimeStamp | None = None
    filtered: bool = False


def load_files(entries: Sequence[Entry], declared: Declared, *, where: str, left_out: Sequence[Path] = ()) -> Parts:
    """Put each record in its part, in the order of `entries`, and decode it where memory can hold them all.

    Args:
        entries: at least one file; if any names its part, user, group or time, all do, and all times are of one kind.
        declared: what the owner declared. With `user_from` "dicom" each file's patient is its user, by a keyed code.
            Size and channels that were not declared are read from the files' headers: the median of the shorter sides
            (at most 224 pixels), and grey if every file is grey.
        where: what to call the data set in an error.
        left_out: files of the set that are none of these; with `skip_unreadable` those that are broken are added.
    """
    for label in sorted({entry.label for entry in entries if isinstance(entry.label, str)}):
        class_lists.refuse_unwritable(label, "class name")
    for what in ("user", "group"):
        for name in sorted({getattr(entry, what) for entry in entries} - {None}):
            class_lists.refuse_unwritable(name, what)
    for entry in entries:
        class_lists.refuse_unwritable(str(entry.path), "image", longest=None)
    classes = declared.label_columns or _classes(entries, declared, where)
    with image_files.quiet_decoder():
        if declared.skip_unreadable:
            broken = set(_unreadable(entries, declared))
            entries, left_out = [one for one in entries if one.path not in broken], [*left_out, *sorted(broken)]
            if not entries:
                raise SfumatoError(f"{where} holds no image that can be read", "give images")
        if declared.user_from == BY_PATIENT:
            entries = _of_patients(entries, declared.owner_key)
        size, channels, size_rule, cut = _shape(entries, declared)
        train, test, larger = _records(entries, declared, classes, size, channels)
    return Parts(
        train=train,
        test=test,
        classes=classes,
        classes_listed=(declared.classes or declared.label_columns) is not None,
        parted=entries[0].part is not None,
        size_rule=size_rule,
        cut=cut,
        filtered=any(entry.filtered for entry in entries),
        larger=larger,
        left_out=tuple(map(str, left_out)),
    )


def _classes(entries: Sequence[Entry], declared: Declared, where: str) -> tuple[str, ...]:
    """The class list, as declared or as it is read; every entry's class is in it."""
    classes = declared.classes or class_lists.in_order(str(entry.label) for entry in entries)
    for entry in entries:
        if entry.label not in classes:
            raise class_lists.UnknownClassError(
                f"{str(entry.path)!r} has the label {entry.label!r}",
                "which is not among the declared classes",
                "add it to the declared classes, or take the file out",
            )
    if len(classes) == 1 and not declared.open_set:
        raise SfumatoError(f"{where} holds only one class, {classes[0]!r}", "give images of at least two classes")
    return classes


def _unreadable(entries: Sequence[Entry], declared: Declared) -> list[Path]:
    """The files from which no image can be read. Each is judged by itself, so another record more changes none."""

    def judged(entry: Entry) -> bool:
        try:
            content = image_files.read_bytes(entry.path)
            image_files.decode_whole(
                content, entry.path, sizes=(image_files.SIZE_CAP,), channels=3, levels=declared.levels
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


def _shape(entries: Sequence[Entry], declared: Declared) -> tuple[int, int, str, float]:
    """Size, channels, the size's rule, and the share that a middle square leaves out (`Parts.cut`)."""
    if declared.size is not None and declared.channels is not None:
        return declared.size, declared.channels, "declared", 0.0

    def header(entry: Entry) -> image_files.Header:
        return image_files.header(image_files.read_bytes(entry.path), entry.path, levels=declared.levels)

    headers = list(in_threads(header, entries))
    channels = declared.channels or (1 if all(found.grey for found in headers) else 3)
    cut = statistics.median(1 - found.shorter_side / found.longer_side for found in headers)
    if declared.size is not None:
        return declared.size, channels, "declared", cut
    sides = [found.shorter_side for found in headers]
    size = min(round(statistics.median(sides)), image_files.SIZE_CAP)
    rule = f"the median of the images' shorter sides, at most {image_files.SIZE_CAP} pixels"
    return image_files.check_size(size, "declare a size for the images to be brought to"), channels, rule, cut


def _records(
    entries: Sequence[Entry], declared: Declared, classes: tuple[str, ...], size: int, channels: int
) -> tuple[Records, Records, Records | None] | tuple[FileRecords, FileRecords, FileRecords | None]:
    """Training part, test part, and the larger training images where they are wanted."""
    side = image_files.larger_side(size, declared) or 0
    held = len(entries) * (size * size + side * side) * channels <= MEMORY_SHARE * memory()

    def one(entry: Entry) -> tuple[list[np.ndarray], bytes, bool]:
        content = image_files.read_bytes(entry.path)
        is_test = _in_test(entry, content, declared)
        sides = (size, side) if side and not is_test else (size,)
        found, whole = image_files.decode_whole(
            content, entry.path, sizes=sides if held else (), channels=channels, levels=declared.levels
        )
        own = stored_code(declared.owner_key, content)
        return found, own + (own if whole is None else pixel_code(declared.owner_key, whole)), is_test

    images = np.empty((len(entries) if held else 0, size, size, channels), np.uint8)
    larger = np.empty((len(entries) if held and side else 0, side, side, channels), np.uint8)
    train, test = _Members(), _Members()
    # Training images fill the array from its start and test images from its end: no second copy of the whole.
    for index, (found, own, is_test) in enumerate(in_threads(one, entries, declared.progress)):
        if held:
            images[-1 - len(test.entries) if is_test else len(train.entries)] = found[0]
        if len(found) > 1:
            larger[len(train.entries)] = found[1]
        (test if is_test else train).add(entries[index], own)
    if held:
        count = len(train.entries)
        parts = ((train, images[:count]), (test, images[count:][::-1].copy()))
        first, second = (Records(images=pixels, **members.known(classes, declared)) for members, pixels in parts)
        return first, second, replace(first, images=larger[:count]) if side else None
    # What decoders say about odd metadata, once for all: readers run beside other work, where no filter can be set.
    warnings.filterwarnings("ignore", category=UserWarning, module="PIL|pydicom")
    left, right = (
        FileRecords(**members.known(classes, declared), size=size, channels=channels, levels=declared.levels)
        for members in (train, test)
    )
    return left, right, replace(left, size=side) if side else None


def _in_test(entry: Entry, content: bytes, declared: Declared) -> bool:
    """Whether a file belongs to the test part: as it says itself, else by a keyed hash."""
    if entry.part is not None:
        return entry.part == "test"
    return record_in_test(declared.owner_key, content, entry.user, declared.test_fraction)


class _Members:
    """The files of one part, as they come."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.codes: list[bytes] = []

    def add(self, entry: Entry, own: bytes) -> None:
        self.entries.append(entry)
        self.codes.append(own)

    def known(self, classes: tuple[str, ...], declared: Declared) -> dict[str, Any]:
        """Everything about them but their images."""
        labels = [entry.label for entry in self.entries]
        if declared.label_columns is None:
            numbers = {name: number for number, name in enumerate(classes)}
            known = np.array([numbers[str(label)] for label in labels], dtype=np.int64)
        else:
            known = np.array(labels, dtype=np.int64).reshape(-1, len(classes))
        whose, of_group = (
            np.array(names, dtype=np.str_) if None not in names else None
            for names in ([entry.user for entry in self.entries], [entry.group for entry in self.entries])
        )
        when = bool(self.entries) and self.entries[0].time is not None
        return {
            "labels": known,
            "users": whose,
            "groups": of_group,
            "files": np.array([str(entry.path) for entry in self.entries], dtype=np.str_),
            "codes": as_array(self.codes),
            "times": np.array([entry.time for entry in self.entries]) if when else None,
        }


def memory() -> int:
    """Bytes of memory that the machine has; a great many where the system doesn't say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 1 << 62
