"""Listed image files to two parts of records, in memory or left in their files."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sfumato._checks import SfumatoError
from sfumato._systems import memory_limit
from sfumato.data import classes as class_lists
from sfumato.data import decoding as image_files
from sfumato.data import paths
from sfumato.data.classes import to_nfc
from sfumato.data.declared import Declared, Order, Pixels, check_size
from sfumato.data.readers.dicom import BY_PATIENT, patient
from sfumato.data.readers.listing import Listing, Texts
from sfumato.data.record_users import (
    BY_CLASS,
    LENGTH,
    check_by_class,
    pixel_code,
    record_in_test,
    stored_code,
    user_code,
)
from sfumato.data.records import FileRecords, Records, map_in_threads, paths_of
from sfumato.data.source import Parts
from sfumato.data.subsets import streamed

MEMORY_SHARE = 0.5
"""Share of this process's memory for images. Larger sets stay in their files."""


def load_files(
    listing: Listing, order: Order, *, where: str, unreadable: Sequence[Path | str] = (), notes: tuple[str, ...] = ()
) -> Parts:
    """Assigns each record to its part, in the order of the listing, and decodes all records if they fit in memory.

    Args:
        listing: at least one record.
        order: with `user_from` "dicom" the user is the keyed code of each file's patient, with "class" its class. Size
            and channels that were not declared are read from the files' headers: the median of the shorter sides (at
            most 224 pixels), and grey if every file is grey.
        where: name of the data set in errors.
        unreadable: further files that are not images; with `skip_unreadable` broken files are added.
        notes: notes for the owner on the listing.
    """
    declared = order.declared
    if declared.people.user_from == BY_CLASS:
        check_by_class(declared, where, has_own_split=listing.test is not None)
        listing = listing.with_class_users()
    classes = declared.labels.label_columns or _classes(listing, declared, where)
    if declared.labels.label_columns is None:
        listing = listing.with_classes(classes, "the file")
    with image_files.quiet_decoder():
        if declared.loading.skip_unreadable:
            broken = _unreadable(listing, declared.pixels)
            unreadable = [*unreadable, *sorted(listing.stored.name(place) for place in listing.places[broken].tolist())]
            listing = listing.select(~broken)
            if not len(listing):
                raise SfumatoError(f"{where} holds no readable image", "give images")
        if declared.people.user_from == BY_PATIENT:
            listing = _with_patients(listing, order.owner_key)
        size, channels, size_rule, cropped_share = _shape(listing, declared.pixels)
        side = declared.purpose.larger_side(size) or 0
        room = min(MEMORY_SHARE * memory_limit(), listing.stored.room)
        read = _load_to_memory if len(listing) * (size * size + side * side) * channels <= room else _leave_on_disk
        parts = read(listing.split_by_users(order), order, classes, size, channels)
    return Parts(
        **parts,
        classes=classes,
        size_rule=size_rule,
        cropped_share=cropped_share,
        unreadable_files=tuple(map(str, unreadable)),
        notes=notes,
        **listing.reading(order),
    )


def _classes(listing: Listing, declared: Declared, where: str) -> tuple[str, ...]:
    """The class list: declared, stored with the records, or read from the labels."""
    classes = declared.labels.classes or listing.written or class_lists.sort_names(listing.names)
    if len(classes) == 1 and not declared.purpose.open_set:
        listing.with_classes(classes, "the file")
        class_lists.refuse_one_class(classes, where)
    return classes


def _unreadable(listing: Listing, pixels: Pixels) -> np.ndarray:
    """Which records cannot be read as images, bool (N,). Each is checked independently of all others."""
    stored = listing.stored

    def judged(place: int) -> bool:
        try:
            image_files.decode_whole(
                stored.read(place), stored.name(place), sizes=(image_files.SIZE_CAP,), channels=3, levels=pixels.levels
            )
        except paths.UnreadableError:
            return True
        return False

    return np.fromiter(map_in_threads(judged, listing.places), bool, len(listing))


def _with_patients(listing: Listing, owner_key: bytes) -> Listing:
    """The records with their patients' codes as users, without storing the identifiers."""
    stored, users = listing.stored, Texts()

    def code_of(place: int) -> str:
        content, name = stored.read(place), stored.name(place)
        with image_files.image_errors(name):
            return user_code(owner_key, to_nfc(patient(content, f"image {str(name)!r}")))

    for code in map_in_threads(code_of, listing.places):
        users.append(code)
    return replace(listing, users=users.numbers(), people=tuple(users.names))


def _shape(listing: Listing, pixels: Pixels) -> tuple[int, int, str, float]:
    """Size, channels, the rule for the size, and the cropped share (`Parts.cropped_share`)."""
    if pixels.size is not None and pixels.channels is not None:
        return pixels.size, pixels.channels, "declared", 0.0
    stored, levels = listing.stored, pixels.levels

    def header(place: int) -> tuple[int, int, bool]:
        facts = image_files.header(stored.read(place), stored.name(place), levels=levels)
        return facts.shorter_side, facts.longer_side, facts.grey

    form = np.dtype([("shorter", np.int64), ("longer", np.int64), ("grey", bool)])
    headers = np.fromiter(map_in_threads(header, listing.places), form, len(listing))
    channels = pixels.channels or (1 if headers["grey"].all() else 3)
    cropped = float(np.median(1 - headers["shorter"] / headers["longer"]))
    if pixels.size is not None:
        return pixels.size, channels, "declared", cropped
    size = min(round(float(np.median(headers["shorter"]))), image_files.SIZE_CAP)
    rule = f"the median of the images' shorter sides, at most {image_files.SIZE_CAP} pixels"
    return check_size(size, "declare a size to resize the images to"), channels, rule, cropped


def _load_to_memory(
    listing: Listing, order: Order, classes: tuple[str, ...], size: int, channels: int
) -> dict[str, Any]:
    """Training part, test part, and the larger training images if requested, in memory."""
    side = order.declared.purpose.larger_side(size) or 0
    levels, key, share = order.declared.pixels.levels, order.owner_key, order.declared.loading.share
    stored, sides, test = listing.stored, listing.places, listing.test

    def read_image(row: int) -> tuple[list[np.ndarray], bytes, bool]:
        place = int(sides[row])
        content = stored.read(place)
        is_test = record_in_test(key, content, None, share) if test is None else bool(test[row])
        sizes = (size, side) if side and not is_test else (size,)
        decoded, code = _decoded(content, stored.name(place), key, sizes=sizes, channels=channels, levels=levels)
        return decoded, code, is_test

    images = np.empty((len(listing), size, size, channels), np.uint8)
    zoomed = np.empty((len(listing) if side else 0, side, side, channels), np.uint8)
    codes, tested = np.empty((len(listing), 2 * LENGTH), np.uint8), np.empty(len(listing), bool)
    # Training images fill the array from the start, test images from the end, to avoid a second copy.
    train = 0
    for row, (decoded, code, is_test) in enumerate(map_in_threads(read_image, np.arange(len(listing)), order.progress)):
        images[train - 1 - row if is_test else train] = decoded[0]
        if len(decoded) > 1:
            zoomed[train] = decoded[1]
        codes[row], tested[row] = np.frombuffer(code, np.uint8), is_test
        train += not is_test
    rows = np.flatnonzero(~tested), np.flatnonzero(tested)
    both = images[:train], images[train:][::-1].copy()
    first, second = (
        Records(images=part, codes=codes[which], files=paths_of(stored, listing.places[which]), **listing.facts(which))
        for part, which in zip(both, rows, strict=True)
    )
    larger = replace(first, images=zoomed[:train]) if side else None
    return {"train": first, "test": second, "zoomed": larger}


def _leave_on_disk(
    listing: Listing, order: Order, classes: tuple[str, ...], size: int, channels: int
) -> dict[str, Any]:
    """The parts, left where they are stored, and their fingerprint. Each image is decoded once, in its order."""
    side = order.declared.purpose.larger_side(size) or 0
    levels, key, share = order.declared.pixels.levels, order.owner_key, order.declared.loading.share
    stored, test = listing.stored, listing.test
    # Silences decoders' warnings about metadata for good: reading threads cannot set filters safely.
    warnings.filterwarnings("ignore", category=UserWarning, module="PIL|pydicom")

    def coin(place: int) -> bool:
        return record_in_test(key, stored.read(place), None, share)

    if test is None:
        test = np.fromiter(map_in_threads(coin, listing.places, order.progress), bool, len(listing))
    left, right = (
        FileRecords(
            stored=stored,
            places=listing.places[which],
            codes=np.empty((len(which), 2 * LENGTH), np.uint8),
            size=size,
            channels=channels,
            levels=levels,
            **listing.facts(which),
        )
        for which in (np.flatnonzero(~test), np.flatnonzero(test))
    )
    zoomed = replace(left, size=side) if side else None
    done, total = 0, len(listing)

    def decoded(part: FileRecords) -> Iterator[np.ndarray]:
        """Yields the images of a part, and stores the codes of each."""
        nonlocal done
        form = {"sizes": (part.size,), "channels": channels, "levels": levels}
        work = lambda place: _decoded(stored.read(place), stored.name(place), key, **form)  # noqa: E731
        for row, ((pixels,), code) in enumerate(map_in_threads(work, part.places)):
            part.codes[row] = np.frombuffer(code, np.uint8)
            done += 1
            if order.progress is not None:
                order.progress(done, total)
            yield pixels

    fingerprint = streamed(key, zoomed or left, right, classes, decoded)
    return {"train": left, "test": right, "zoomed": zoomed, "fingerprint": fingerprint}


def _decoded(content: bytes, name: str, owner_key: bytes, **form: Any) -> tuple[list[np.ndarray], bytes]:
    """An image at several sizes (`decode_whole`), and the two codes of its record."""
    images, whole = image_files.decode_whole(content, name, **form)
    code = stored_code(owner_key, content)
    return images, code + (code if whole is None else pixel_code(owner_key, whole))
