"""Reads the arrays of a NumPy archive, without unpickling and within memory limits; converts images in arrays to the
parts of a source; and checks the further columns of an archive: users and groups."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format

from sfumato._checks import SfumatoError
from sfumato._files import path_errors, refuse_special
from sfumato._systems import memory_limit
from sfumato.data import paths
from sfumato.data.classes import refuse_unwritable, renumber_labels, to_nfc, user_name
from sfumato.data.declared import Order, check_size
from sfumato.data.decoding import prepare_array
from sfumato.data.levels import Levels
from sfumato.data.record_users import SEPARATOR, codes_of, refuse_several
from sfumato.data.records import Records, numbered
from sfumato.data.source import Parts


def malformed(name: str, array: np.ndarray, wanted: str, remedy: str) -> SfumatoError:
    """The error for an array of another type, shape or content than is read."""
    return SfumatoError(f"{name} must be {wanted}, got {array.dtype} {array.shape}", remedy)


def out_of_range(name: str, value: float) -> SfumatoError:
    """The error for a floating-point image with a value outside [0, 1]."""
    return SfumatoError(f"{name} holds {value:g}, outside [0, 1]", "give uint8 from 0 to 255, or scale to [0, 1]")


Wanted = Callable[[dict[str, str], str], tuple[tuple[str, ...], dict[str, str]]]


def read(
    file: Path, where: str, select: Wanted, check: Callable[[dict[str, np.ndarray]], object]
) -> tuple[dict[str, np.ndarray], Collection[str]]:
    """The needed arrays by name, and the names of all arrays.

    Args:
        where: name of the archive in errors.
        select: selects the needed arrays from the names of the archive's members.
        check: refuses arrays by their shapes and types, before any is unpacked. Its arrays hold zeros, and no memory.
    """
    with _open_archive(file, where) as archive:
        members = {name.removesuffix(".npy"): name for name in archive.namelist()}
        wanted, columns = select(members, where)
        chosen = {name: members[name] for name in (*wanted, "classes") if name in members} | columns
        check(_headers(archive, chosen, where))
        return {name: _array(archive, member) for name, member in chosen.items()}, members.keys()


@contextmanager
def _open_archive(file: Path, where: str) -> Iterator[zipfile.ZipFile]:
    """Opens the archive. Errors name it."""
    with path_errors(where, "correct the path after npz:", "give the .npz file, or use folder:"):
        refuse_special(paths.status(file), where)
        with file.open("rb") as stream:
            if not zipfile.is_zipfile(stream):
                raise SfumatoError(f"{where} is not an npz archive, or is truncated", "write it with numpy.savez")
            try:
                with zipfile.ZipFile(stream) as archive:
                    yield archive
            except SfumatoError:
                raise
            except MemoryError:
                problem = f"{where} unpacks to more than the free memory"
                raise SfumatoError(problem, "free some, or save less") from None
            except Exception:  # zipfile, its decoders and the reading of headers raise a dozen types
                raise SfumatoError(f"{where} is broken", "write it again with numpy.savez") from None


def _headers(archive: zipfile.ZipFile, members: dict[str, str], where: str) -> dict[str, np.ndarray]:
    """Zeros of the arrays' shapes and types, which take no memory. Refuses arrays that do not fit in memory."""
    headers: dict[str, np.ndarray] = {}
    for name, member in members.items():
        with archive.open(member) as stream:
            old = format.read_magic(stream) == (1, 0)
            shape, _, dtype = (format.read_array_header_1_0 if old else format.read_array_header_2_0)(stream)
            if dtype.hasobject:
                raise SfumatoError(
                    f"{where} holds pickled objects, which can run code when they are read",
                    "save plain arrays: images as uint8, labels as integers, classes as text",
                )
            headers[name] = np.broadcast_to(np.zeros((), dtype), shape)
            held = archive.getinfo(member).file_size - stream.tell()
        if held != headers[name].nbytes and headers[name].nbytes <= memory_limit():
            raise ValueError("the header describes another array")
    if sum(array.nbytes for array in headers.values()) > memory_limit():
        largest, most = max(((name, array.nbytes) for name, array in headers.items()), key=lambda entry: entry[1])
        raise SfumatoError(
            f"{where} unpacks to more than the available memory, {largest} alone to {most / 1e9:,.1f} GB",
            "save fewer or smaller images, or files, which are read when needed (folder: or csv:)",
        )
    return headers


def _array(archive: zipfile.ZipFile, member: str) -> np.ndarray:
    with archive.open(member) as stream:
        return format.read_array(stream, allow_pickle=False)


def parts_of(
    sides: Mapping[str, Mapping[str, Any]],
    order: Order,
    *,
    names: tuple[str, ...],
    where: str,
    classes: tuple[str, ...] | None = None,
    size_rule: str = "the data set's own",
    **reading: Any,
) -> Parts:
    """Both parts with images at the declared size, and the larger training images if requested.

    Args:
        sides: for "train" and "test" the images (N, H, W, C), uint8 or 16 bits, their labels, and further fields of
            `Records`.
        names: class names; labels are positions in it.
        where: name of the data set in errors.
        classes: the class list; None for the declared one, or else `names`.
        size_rule: how the size was chosen if it was not declared.
        reading: further fields of `Reading`.
    """
    declared, names = order.declared, tuple(map(to_nfc, names))
    height, width, depth = sides["train"]["images"].shape[1:]
    shorter = min(height, width)
    size = declared.pixels.size or check_size(shorter, "declare a size to resize the images to")
    channels, levels = declared.pixels.channels or depth, declared.pixels.levels

    def part(images: np.ndarray, labels: np.ndarray, **columns: Any) -> Records:
        pixels = _to_eight_bits(images, levels)
        if labels.ndim == 1:
            labels = renumber_labels(labels, names, declared.labels.classes, where)
        # The first code is of the stored values, so it does not depend on the levels.
        codes = codes_of(order.owner_key, images, pixels)
        return Records(
            images=prepare_array(pixels, size=size, channels=channels), labels=labels, codes=codes, **columns
        )

    train, test = (part(**sides[name]) for name in ("train", "test"))
    side = declared.purpose.larger_side(size) if shorter > size else None
    zoomed = None
    if side is not None:
        originals = _to_eight_bits(sides["train"]["images"], levels)
        zoomed = replace(train, images=prepare_array(originals, size=side, channels=channels))
    return Parts(
        train=train,
        test=test,
        zoomed=zoomed,
        classes=classes or declared.labels.classes or names,
        size_rule="declared" if declared.pixels.size else size_rule,
        cropped_share=1 - shorter / max(height, width),
        **reading,
    )


def _to_eight_bits(images: np.ndarray, levels: Levels | None) -> np.ndarray:
    if images.dtype == np.uint8 or levels is None:
        return images
    result = np.empty(images.shape, np.uint8)
    for index, image in enumerate(images):
        result[index] = levels.apply(image, f"image {index}")
    return result


_SINGULAR = {"users": "user", "groups": "group"}


def columns_among(members: dict[str, str], sides: Sequence[str], where: str) -> dict[str, str]:
    """The members of an archive with further columns, such as `users_train`, under their normal names.

    Args:
        members: members of the archive by array name.
        sides: suffixes of a column's name: "_train" and "_test", or "".
        where: name of the archive in errors.
    """
    columns: dict[str, str] = {}
    for side in sides:
        for name, singular in _SINGULAR.items():
            spelt = [spelling for spelling in (name + side, singular + side) if spelling in members]
            if len(spelt) > 1:
                raise SfumatoError(f"{where} has both {spelt[0]} and {spelt[1]}", "leave one of them out")
            if spelt:
                columns[name + side] = members[spelt[0]]
        if f"groups{side}" in columns and f"users{side}" not in columns:
            raise SfumatoError(f"{where} has groups{side} but no users{side}", f"save users{side} as well")
    first, *others = (f"users{side}" for side in sides)
    for other in others:
        if other in columns and first not in columns:
            raise SfumatoError(f"{where} has {other} and no {first}", f"save {first} as well")
    return columns


def checked_column(column: np.ndarray, name: str, where: str, images: int) -> np.ndarray:
    """A checked column (N,): users and groups as text in composed form."""
    title = f"{name} of {where}"
    if name.startswith("users"):
        return _users(column, title, images)
    numbers, groups = numbered(_texts(column, title, images))
    return np.array([to_nfc(name) for name in groups], np.str_)[numbers]


def _users(users: np.ndarray, title: str, images: int) -> np.ndarray:
    """Text (N,), the user of each image."""
    if users.ndim == 2:
        for row, row_users in enumerate(users.tolist()):
            if len(named := [str(name) for name in row_users if str(name)]) > 1:
                refuse_several(SEPARATOR.join(named), f"image {row} of {title}")
    numbers, names = numbered(_texts(users, title, images))
    for name, row in zip(names, np.unique(numbers, return_index=True)[1].tolist(), strict=True):
        refuse_several(name, f"image {row} of {title}")
    return np.array([user_name(name) for name in names], np.str_)[numbers]


def _texts(texts: np.ndarray, title: str, images: int) -> np.ndarray:
    """Text (N,). Whole numbers become decimal digits, so that an archive names users like a table."""
    if texts.shape != (images,) or texts.dtype.kind not in "iuU":
        wanted = f"{images} whole numbers or texts, one for each image"
        raise malformed(title, texts, wanted, "save numpy.array(['ann', 'bob', ...]), or numbers")
    texts = texts.astype(np.str_)
    for name in np.unique(texts).tolist():
        if not name.strip():
            image = np.flatnonzero(texts == name)[0]
            raise SfumatoError(f"{title} has no name for image {image}", "give it one, or remove the image")
        refuse_unwritable(name, f"{title}: the name")
    return texts
