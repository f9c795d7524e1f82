"""npz:PATH - arrays in one NumPy archive: x_train y_train x_test y_test, or x y."""

from __future__ import annotations

import datetime
import math
import zipfile
from pathlib import Path

import numpy as np
from numpy.lib import format

from sfumato._checks import SfumatoError
from sfumato._files import refuse_special
from sfumato.data import classes as class_lists
from sfumato.data import paths
from sfumato.data.codes import codes_of
from sfumato.data.files import memory
from sfumato.data.filtered import MARK
from sfumato.data.images import check_size, larger, prepare_array
from sfumato.data.levels import Levels, undeclared
from sfumato.data.parts import Parts
from sfumato.data.records import Declared, Records
from sfumato.data.split import in_test

_FOUR = ("x_train", "y_train", "x_test", "y_test")
_PAIR = ("x", "y")


def load(path: str, declared: Declared) -> Parts:
    """Read images uint8 (N, H, W) or (N, H, W, 1 or 3) and integer labels (N,), counted from 0.

    Floating-point images are taken as they are if every value lies in [0, 1], times 255, rounded; any other range is
    refused. Images uint16 and int16 are taken by the declared levels. An array `classes` of text names the classes, one
    named as `filtered.MARK` says that the set was filtered by looking at private data. A pair x, y is split by a keyed
    hash of each image's pixels. Images that are not square lose the ends of their longer side. An array `time_train`,
    or `time` beside x and y, of numbers or datetime64 says when each training image is from.
    """
    file = paths.expanded(path)
    where = f"archive {str(file)!r}"
    arrays, names, filtered = _read(file, where, declared.levels)
    shapes = {array.shape[1:] for array in arrays.values() if array.ndim == 4}
    if len(shapes) > 1:
        listing = " and ".join(map(str, sorted(shapes)))
        raise SfumatoError(f"the two image arrays of {where} differ in shape: {listing}", "save both in one shape")
    height, width, depth = shapes.pop()
    size = declared.size or check_size(min(height, width), "declare a size for the images to be brought to")
    channels = declared.channels or depth
    classes, listed = _classes(arrays, names, declared, where)

    def part(
        images: np.ndarray, labels: np.ndarray, rows: np.ndarray | None, times: np.ndarray | None = None
    ) -> Records:
        labels = class_lists.renumbered(labels, names or classes, declared.classes, where)
        shown = _in_eight_bits(images, declared.levels)
        codes = codes_of(declared.owner_key, images, shown)  # the first of what is stored: the same under all levels
        pixels = prepare_array(shown, size=size, channels=channels)
        return Records(images=pixels, labels=labels, codes=codes, rows=rows, times=times)

    parted, rows, times = "x" not in arrays, (None, None), arrays.get("time_train")
    if not parted:
        images, labels, times = arrays["x"], arrays["y"], arrays.get("time")
        test = np.array(
            [in_test(declared.owner_key, b"image" + image.tobytes(), declared.test_fraction) for image in images],
            dtype=bool,
        )
        arrays = dict(zip(_FOUR, (images[~test], labels[~test], images[test], labels[test]), strict=True))
        rows, times = (np.flatnonzero(~test), np.flatnonzero(test)), None if times is None else times[~test]
    train = part(arrays["x_train"], arrays["y_train"], rows[0], times)
    originals = _in_eight_bits(arrays["x_train"], declared.levels) if declared.zoom > 1 else arrays["x_train"]
    rule = "declared" if declared.size else "the shorter side of the arrays"
    return Parts(
        train=train,
        test=part(arrays["x_test"], arrays["y_test"], rows[1]),
        classes=classes,
        classes_listed=listed,
        parted=parted,
        size_rule=rule,
        filtered=filtered,
        larger=larger(train, originals, declared),
    )


def _read(file: Path, where: str, levels: Levels | None) -> tuple[dict[str, np.ndarray], tuple[str, ...] | None, bool]:
    try:
        refuse_special(paths.status(file), where)
        with file.open("rb") as stream:
            if not zipfile.is_zipfile(stream):
                raise SfumatoError(f"{where} is not an npz archive, or is cut short", "write it with numpy.savez")
            with zipfile.ZipFile(stream) as archive:
                members = {name.removesuffix(".npy"): name for name in archive.namelist()}
                wanted = _PAIR if not set(_FOUR) & set(members) else _FOUR
                for name in wanted:
                    if name not in members:
                        found = ", ".join(members) or "nothing"
                        raise SfumatoError(
                            f"{where} has no array {name!r}; it holds {found}",
                            "save x_train, y_train, x_test and y_test, or one pair x and y to have it split",
                        )
                stamps = "time" if wanted is _PAIR else "time_train"
                chosen = [name for name in (*wanted, stamps, "classes") if name in members]
                _check_sizes(archive, {name: members[name] for name in chosen}, where)
                arrays = {name: _array(archive, members[name]) for name in chosen}
                filtered = MARK in members
    except SfumatoError:
        raise
    except (FileNotFoundError, NotADirectoryError):
        raise SfumatoError(f"{where} does not exist", "correct the path after npz:") from None
    except PermissionError:
        raise SfumatoError(f"{where} may not be read", "give yourself permission to read it") from None
    except IsADirectoryError:
        raise SfumatoError(f"{where} is a folder", "give the .npz file, or use folder:") from None
    except MemoryError:
        raise SfumatoError(f"{where} unpacks to more than the memory that is free", "free some, or save less") from None
    except Exception:  # zipfile, its decoders and the reading of headers raise a dozen types for broken archives
        raise SfumatoError(f"{where} is broken", "write it again with numpy.savez") from None
    listed = arrays.pop("classes", None)
    for images_name, labels_name in zip(wanted[::2], wanted[1::2], strict=True):
        arrays[images_name] = _images(arrays[images_name], images_name, where, levels)
        arrays[labels_name] = _labels(arrays[labels_name], labels_name, where)
        counts = len(arrays[images_name]), len(arrays[labels_name])
        if counts[0] != counts[1]:
            raise SfumatoError(
                f"{images_name} of {where} holds {counts[0]} images and {labels_name} {counts[1]} labels",
                "save one label for each image",
            )
        if not counts[0]:
            raise SfumatoError(f"{images_name} of {where} is empty", "save at least two images of each class")
    if stamps in arrays:
        arrays[stamps] = _times(arrays[stamps], f"{stamps} of {where}", len(arrays[wanted[0]]))
    return arrays, _names(listed, where), filtered


def _check_sizes(archive: zipfile.ZipFile, members: dict[str, str], where: str) -> None:
    """Refuse arrays that memory cannot hold by what their headers say, before any is unpacked."""
    sizes = {}
    for name, member in members.items():
        with archive.open(member) as stream:
            version = format.read_magic(stream)
            shape, _, dtype = (
                format.read_array_header_1_0(stream) if version == (1, 0) else format.read_array_header_2_0(stream)
            )
            if dtype.hasobject:
                raise SfumatoError(
                    f"{where} holds pickled objects, which can run code when they are read",
                    "save plain arrays: images as uint8, labels as integers, classes as text",
                )
            sizes[name] = math.prod(shape) * dtype.itemsize
            held = archive.getinfo(member).file_size - stream.tell()
        if sizes[name] <= memory() and sizes[name] != held:
            raise ValueError("the header speaks of another array")
    if sum(sizes.values()) > memory():
        largest = max(sizes, key=sizes.__getitem__)
        raise SfumatoError(
            f"{where} unpacks to more than this machine's memory, {largest} alone to {sizes[largest] / 1e9:,.1f} GB",
            "save fewer or smaller images, or as files, which are read when they are wanted (folder: or csv:)",
        )


def _array(archive: zipfile.ZipFile, member: str) -> np.ndarray:
    with archive.open(member) as stream:
        return format.read_array(stream, allow_pickle=False)


def _images(images: np.ndarray, name: str, where: str, levels: Levels | None) -> np.ndarray:
    """Images (N, H, W, C): uint8, or the 16 bits that they were stored with."""
    if images.ndim == 3:
        images = images[..., np.newaxis]
    if images.ndim != 4 or images.shape[3] not in (1, 3):
        raise SfumatoError(
            f"{name} of {where} has the shape {images.shape}; it must be (N, H, W), (N, H, W, 1) or (N, H, W, 3)",
            "reshape it, or move the channels to the end with numpy.moveaxis(x, 1, -1)",
        )
    if 0 in images.shape[1:]:
        raise SfumatoError(f"{name} of {where} has the shape {images.shape}: no pixels", "save images that have some")
    if images.dtype == np.uint8:
        return images
    if images.dtype.kind in "iu" and images.dtype.itemsize == 2:
        if levels is None:
            raise undeclared(f"{name} of {where}")
        for index, image in enumerate(images):
            levels.check(image, f"image {index} of {name} of {where}")
        return images.astype(images.dtype.newbyteorder("="))
    if not np.issubdtype(images.dtype, np.floating):
        raise SfumatoError(f"{name} of {where} is {images.dtype}", "save uint8 from 0 (black) to 255 (white)")
    result = np.empty(images.shape, np.uint8)
    for index, image in enumerate(images):
        if not (image.min(initial=0) >= 0 and image.max(initial=0) <= 1):  # true for NaN as well
            value = next(number for number in image.ravel().tolist() if not 0 <= number <= 1)
            raise SfumatoError(
                f"{name} of {where} is {images.dtype} and holds {value:g} in image {index}, outside [0, 1]",
                "save uint8 from 0 (black) to 255 (white), or scale to [0, 1]",
            )
        result[index] = np.rint(255 * image.astype(np.float64))
    return result


def _in_eight_bits(images: np.ndarray, levels: Levels | None) -> np.ndarray:
    if images.dtype == np.uint8 or levels is None:
        return images
    result = np.empty(images.shape, np.uint8)
    for index, image in enumerate(images):
        result[index] = levels.applied(image, f"image {index}")
    return result


def _labels(labels: np.ndarray, name: str, where: str) -> np.ndarray:
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        raise SfumatoError(
            f"{name} of {where} has the shape {labels.shape}; it must be (N,)",
            "save one whole number for each image (y.argmax(1) of one-hot rows)",
        )
    if labels.dtype.kind not in "iu":
        raise SfumatoError(f"{name} of {where} is {labels.dtype}", "save labels as whole numbers 0, 1, 2, ...")
    for label in (labels.min(), labels.max()) if len(labels) else ():
        if not 0 <= label <= np.iinfo(np.int64).max:
            raise SfumatoError(f"{name} of {where} holds the label {label}", "number the classes from 0")
    return labels.astype(np.int64)


def _times(times: np.ndarray, what: str, images: int) -> np.ndarray:
    """Time stamps (N,): numbers as float64, dates as datetime64[us]."""
    if times.shape != (images,) or times.dtype.kind not in "iufM":
        raise SfumatoError(
            f"{what} must be {images} numbers or datetime64, one for each image, got {times.dtype} {times.shape}",
            "save numpy.array([...], 'datetime64[s]'), or numbers",
        )
    if times.dtype.kind == "M":
        years = times.astype("datetime64[Y]").astype(np.int64) + 1970
        odd = np.isnat(times) | (years < datetime.MINYEAR) | (years > datetime.MAXYEAR)
    else:
        with np.errstate(over="ignore"):
            times = times.astype(np.float64)
        odd = ~np.isfinite(times)
    if odd.any():
        raise SfumatoError(
            f"{what} has no date of the years 1 to 9999 or finite number for image {np.flatnonzero(odd)[0]}",
            "give its time, or take the image out",
        )
    return times.astype("datetime64[us]") if times.dtype.kind == "M" else times


def _names(listed: np.ndarray | None, where: str) -> tuple[str, ...] | None:
    if listed is None:
        return None
    if listed.ndim != 1 or listed.dtype.kind != "U" or len({*listed.tolist()} - {""}) < max(2, len(listed)):
        raise SfumatoError(
            f"classes of {where} must be at least two different names, got {listed.dtype} {listed.shape}",
            "save it as numpy.array(['cat', 'dog']), or leave it out",
        )
    for name in listed.tolist():
        class_lists.refuse_unwritable(name, f"classes of {where} holds a name that cannot be used:")
    return tuple(listed.tolist())


def _classes(
    arrays: dict[str, np.ndarray], names: tuple[str, ...] | None, declared: Declared, where: str
) -> tuple[tuple[str, ...], bool]:
    labels = [array for name, array in arrays.items() if name.startswith("y")]
    largest = int(max(array.max() for array in labels))
    known = names or declared.classes
    if known is not None:
        if largest >= len(known):
            raise class_lists.UnknownClassError(
                f"{where} holds the label {largest}",
                f"and {len(known)} classes are named",
                "name every class in the order of the labels, which count from 0",
            )
        return declared.classes or known, True
    if largest >= sum(map(len, labels)):
        raise SfumatoError(
            f"{where} holds the label {largest}, more than it has images",
            "number the classes 0, 1, 2, ... without gaps",
        )
    return tuple(str(number) for number in range(largest + 1)), False
