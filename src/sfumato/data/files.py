"""Labelled image files, however they were listed, to two parts of records."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from sfumato._checks import SfumatoError
from sfumato.data import classes as class_lists
from sfumato.data import images as pictures
from sfumato.data.records import Declared, Loaded, Progress, Records
from sfumato.data.split import in_test

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One labelled image file.

    Args:
        path: where the file lies.
        label: its class's name.
        part: "train", "test", or None to let the keyed hash decide.
        user: whose picture it is, where that is known.
        filtered: whether it stands in a list that was filtered by looking at private data.
    """

    path: Path
    label: str
    part: str | None = None
    user: str | None = None
    filtered: bool = False


def load_files(entries: Sequence[Entry], declared: Declared, *, where: str) -> Loaded:
    """Decode every file, in the order of `entries`, and put each record in its part.

    Args:
        entries: at least one file; if any names its part or user, all do.
        declared: what the owner declared. Size and channels that were not are read from the files' headers: the median
            of the shorter sides (at most 224 pixels), and grey if every file is grey.
        where: what to call the data set in an error.
    """
    classes = declared.classes or class_lists.in_order(entry.label for entry in entries)
    for entry in entries:
        if entry.label not in classes:
            raise SfumatoError(
                f"{str(entry.path)!r} has the label {entry.label!r}, which is not among the declared classes",
                "add it to the declared classes, or take the file out",
            )
    if len(classes) == 1:
        raise SfumatoError(f"{where} holds only one class, {classes[0]!r}", "give images of at least two classes")
    with pictures.quiet_decoder():
        size, channels, size_rule = _shape(entries, declared)
        train, test = _records(entries, declared, classes, size, channels)
    return Loaded(
        train=train,
        test=test,
        classes=classes,
        classes_listed=declared.classes is not None,
        parted=entries[0].part is not None,
        size_rule=size_rule,
        filtered=any(entry.filtered for entry in entries),
    )


def _shape(entries: Sequence[Entry], declared: Declared) -> tuple[int, int, str]:
    if declared.size is not None and declared.channels is not None:
        return declared.size, declared.channels, "declared"
    headers = list(_in_threads(_header, entries))
    channels = declared.channels or (1 if all(found.grey for found in headers) else 3)
    if declared.size is not None:
        return declared.size, channels, "declared"
    sides = [found.shorter_side for found in headers]
    size = min(round(statistics.median(sides)), pictures.SIZE_CAP)
    rule = f"the median of the images' shorter sides, at most {pictures.SIZE_CAP} pixels"
    return pictures.check_size(size, "declare a size for the images to be brought to"), channels, rule


def _header(entry: Entry) -> pictures.Header:
    return pictures.header(pictures.read_bytes(entry.path), entry.path)


def _records(
    entries: Sequence[Entry], declared: Declared, classes: tuple[str, ...], size: int, channels: int
) -> tuple[Records, Records]:
    def one(entry: Entry) -> tuple[np.ndarray, bool]:
        content = pictures.read_bytes(entry.path)
        pixels = pictures.decode(content, entry.path, size=size, channels=channels)
        if entry.part is not None:
            return pixels, entry.part == "test"
        # All pictures of one user fall on one side, else the test part would show people that the model has met.
        own = b"image" + content if entry.user is None else b"user" + entry.user.encode()
        return pixels, in_test(declared.owner_key, own, declared.test_fraction)

    images = _room_for(len(entries), size, channels)
    numbers = {name: number for number, name in enumerate(classes)}
    train, test = [], []
    # Training pictures fill the array from its start and test pictures from its end: no second copy of the whole.
    for index, (pixels, is_test) in enumerate(_in_threads(one, entries, declared.progress)):
        images[-1 - len(test) if is_test else len(train)] = pixels
        (test if is_test else train).append(entries[index])

    def part(pixels: np.ndarray, members: list[Entry]) -> Records:
        labels = np.array([numbers[entry.label] for entry in members], dtype=np.int64)
        known = bool(members) and members[0].user is not None
        users = np.array([entry.user for entry in members], dtype=np.str_) if known else None
        files = np.array([str(entry.path) for entry in members], dtype=np.str_)
        return Records(images=pixels, labels=labels, users=users, files=files)

    return part(images[: len(train)], train), part(images[len(train) :][::-1].copy(), test)


def _room_for(count: int, size: int, channels: int) -> np.ndarray:
    needed = count * size * size * channels
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # a system that doesn't say
        memory = needed
    if needed > memory:
        raise SfumatoError(
            f"the images need {needed / 2**20:,.0f} MiB of memory at size {size} and this machine has "
            f"{memory / 2**20:,.0f} MiB",
            "declare a smaller size",
        )
    return np.empty((count, size, size, channels), np.uint8)


def _in_threads(
    work: Callable[[Entry], Result], entries: Sequence[Entry], progress: Progress | None = None
) -> Iterator[Result]:
    pool = ThreadPoolExecutor()
    try:
        # Results come in the order of the entries, so the first bad file by name is the one that is reported.
        for done, result in enumerate(pool.map(work, entries), start=1):
            yield result
            if progress is not None:
                progress(done, len(entries))
    finally:
        pool.shutdown(cancel_futures=True)
