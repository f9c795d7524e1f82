"""npz:PATH - arrays in one NumPy archive: x_train y_train x_test y_test, or x y, or those of MedMNIST; images, or texts
as numbers. Archives are read without unpickling and within memory limits."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format

from sfumato._checks import SfumatoError
from sfumato._files import path_errors, refuse_special
from sfumato._systems import memory_limit
from sfumato.data import classes as class_lists
from sfumato.data import paths
from sfumato.data.classes import missing, no_class, refuse_unwritable, renumber_labels, to_nfc, user_name
from sfumato.data.declared import Labels, Order, Texts, check_size
from sfumato.data.decoding import prepare_array, to_bytes
from sfumato.data.levels import Levels, undeclared
from sfumato.data.readers.listing import refuse_empty
from sfumato.data.readers.table import load_numbers
from sfumato.data.record_users import BY_CLASS, SEPARATOR, check_by_class, codes_of, record_in_test, refuse_several
from sfumato.data.records import Records, numbered
from sfumato.data.source import Parts
from sfumato.data.subsets import MARK

_FOUR = ("x_train", "y_train", "x_test", "y_test")
_MEDMNIST = ("train_images", "train_labels", "test_images", "test_labels")
_PAIR = ("x", "y")
_SIDES = (("train", False), ("test", True))
_FIELDS = {"images": "x", "labels": "y", "users": "users", "groups": "groups", "rows": "rows"}
_LABELS = "whole numbers (N,), or 0 and 1 (N, L) for several labels"
_WHOLE = "save integers 0, 1, 2, ..., and their names in an array called classes"


def load(path: str, order: Order) -> Parts:
    """Reads images uint8 (N, H, W) or (N, H, W, 1 or 3) and integer labels (N,), counted from 0.

    Floating-point images must lie in [0, 1]; they are multiplied by 255 and rounded. Images uint16 and int16 are mapped
    by the declared levels. Images that are not square are cropped to their central square.

    Optional arrays: `classes`, text, with the names of the classes; `users_train` and `users_test` (`users` next to x
    and y), whole numbers or text, with the user of each image; `groups_train` and so on, with the public group of the
    user. With `user_from` "class" the class is the user, and there are no arrays of users. An array named
    `subsets.MARK` marks a set that was filtered by looking at private data. A pair x, y is split by a keyed hash of
    each image's user, or else of its pixels.

    Archives of MedMNIST are read under their own names (train_images, train_labels, test_images, test_labels). Their
    validation part is not read, and a note says so.

    Labels (N, L) of 0 and 1 are L labels per image. `classes` then names the labels, and `label_columns` selects among
    them, or names them if there are no names.

    Whole numbers (N, T) are texts, padded with 0, if their vocabulary is declared (`table.load_numbers`).
    """
    file = paths.expanded(path)
    where = f"archive {str(file)!r}"
    with _open_archive(file, where) as archive:
        members = {name.removesuffix(".npy"): name for name in archive.namelist()}
        wanted, columns = _wanted(members, where)
        chosen = {name: members[name] for name in (*wanted, "classes") if name in members} | columns
        _require_forms(_headers(archive, chosen, where), where, order)
        arrays = {name: _array(archive, member) for name, member in chosen.items()}
    notes = class_lists.notes_on_parts(["test", *(["validation"] if "val_images" in members else [])], where)
    return parts_from_arrays(arrays, order, where=where, filtered=MARK in members, notes=notes)


@contextmanager
def _open_archive(file: Path, where: str) -> Iterator[zipfile.ZipFile]:
    """Opens the archive. Errors name it."""
    with path_errors(where, "correct the path after npz:", "give the .npz file, or use folder:"):
        refuse_special(paths.status(file), where)
        with file.open("rb") as stream:
            try:
                with zipfile.ZipFile(stream) as archive:
                    yield archive
            except SfumatoError:
                raise
            except MemoryError:
                raise SfumatoError(f"{where} unpacks to more than the free memory", "free some") from None
            except Exception:  # zipfile, its decoders and the reading of headers raise a dozen types
                raise SfumatoError(f"{where} is not a whole npz archive", "write it with numpy.savez") from None


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


def malformed(name: str, array: np.ndarray, wanted: str, remedy: str) -> SfumatoError:
    """The error for an array of another type, shape or content than is read."""
    return SfumatoError(f"{name} must be {wanted}, got {array.dtype} {array.shape}", remedy)


def parts_from_arrays(arrays: dict[str, np.ndarray], order: Order, *, where: str, **reading: Any) -> Parts:
    """The parts of arrays with the names of an archive: see `load`.

    Args:
        where: name of the arrays in errors.
        reading: further fields of `Parts`.
    """
    declared = order.declared.labels
    arrays, names = _checked(arrays, where, order)
    for letter, kind in (("x", "images"), ("y", "labels")):
        columns = [array for name, array in arrays.items() if name.startswith(letter)]
        shapes = {str(array.shape[1:]) for array in columns if letter == "y" or array.ndim > 2}
        if len(shapes) > 1:
            problem = f"the two arrays of {kind} of {where} differ in shape: {' and '.join(sorted(shapes))}"
            raise SfumatoError(problem, "save both in one shape")
    multilabel = columns[0].ndim == 2
    if multilabel:
        arrays, classes, listed = _several(arrays, names, declared, where)
    else:
        declared.refuse_columns(where)
        classes, listed = _classes(arrays, names, declared, where)
    has_own_split = "x" not in arrays
    of_texts = arrays["x_train" if has_own_split else "x"].ndim == 2
    if order.declared.people.user_from == BY_CLASS:
        arrays = _by_class(arrays, names or classes, order, where)
    if not has_own_split:
        arrays = _split(arrays, order)
    keywords = {"classes_listed": listed, "has_own_split": has_own_split, **reading}
    if of_texts:
        if multilabel:
            raise SfumatoError(f"{where} has several labels for each text", "give one for each")
        for name in ("y_train", "y_test"):
            arrays[name] = class_lists.renumber_labels(arrays[name], names or classes, declared.classes, where)
        return load_numbers(arrays, order, where, classes=classes, **keywords)
    sides = {
        side: {field: arrays[f"{name}_{side}"] for field, name in _FIELDS.items() if f"{name}_{side}" in arrays}
        for side, _ in _SIDES
    }
    rule = "the shorter side of the arrays"
    return parts_of(sides, order, names=names or classes, where=where, classes=classes, size_rule=rule, **keywords)


def _by_class(arrays: dict[str, np.ndarray], names: tuple[str, ...], order: Order, where: str) -> dict[str, np.ndarray]:
    """The arrays with each image's class as its user. Labels are positions in `names`."""
    user_array = next((f"array {name}" for name in arrays if name.startswith("users")), None)
    check_by_class(order.declared, where, has_own_split="x" not in arrays, user_field=user_array)
    for name in names:
        refuse_several(name, f"class {name!r}, which is one user,")
    labels = [(name, array) for name, array in arrays.items() if name.startswith("y")]
    return arrays | {name.replace("y", "users", 1): np.array(names)[array] for name, array in labels}


def _split(arrays: dict[str, np.ndarray], order: Order) -> dict[str, np.ndarray]:
    """Splits the arrays of a pair by a keyed hash of each record. Adds `rows`, the original positions."""
    key, share = order.owner_key, order.declared.loading.share
    users = arrays["users"].tolist() if "users" in arrays else [None] * len(arrays["x"])
    pairs = zip(arrays["x"], users, strict=True)
    tested = [record_in_test(key, record.tobytes(), user, share) for record, user in pairs]
    sides = {f"_{side}": np.array([in_test is is_test for in_test in tested]) for side, is_test in _SIDES}
    arrays = arrays | {"rows": np.arange(len(tested))}
    return {name + side: array[chosen] for side, chosen in sides.items() for name, array in arrays.items()}


def _wanted(members: dict[str, str], where: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """The names of images and labels, and the members with further columns (`columns_among`)."""
    wanted = next((names for names in (_FOUR, _MEDMNIST) if not members.keys().isdisjoint(names)), _PAIR)
    for name in wanted:
        if name not in members:
            present = ", ".join(member if member.isprintable() else repr(member) for member in members) or "nothing"
            raise SfumatoError(
                f"{where} has no array {name!r}; it holds {present}",
                "save x_train, y_train, x_test and y_test, or one pair x and y to have it split",
            )
    return wanted, columns_among(members, [""] if wanted is _PAIR else ["_train", "_test"], where)


def _checked(
    arrays: dict[str, np.ndarray], where: str, order: Order
) -> tuple[dict[str, np.ndarray], tuple[str, ...] | None]:
    """The checked and converted arrays, and the names of the classes if given."""
    listed = arrays.get("classes")
    arrays = {name: array for name, array in arrays.items() if name != "classes"}
    wanted, columns = _require_forms(arrays, where, order)
    for images, labels in zip(wanted[::2], wanted[1::2], strict=True):
        if not _are_texts(arrays[images], order.declared.texts):
            arrays[images] = _images(arrays[images], images, where, order.declared.pixels.levels)
        arrays[labels] = _labels(arrays[labels], labels, where)
    renamed: dict[str, str] = dict(zip(_MEDMNIST, _FOUR, strict=True))
    arrays = {renamed.get(name, name): array for name, array in arrays.items()}
    for name in columns:
        _, *side = name.partition("_")
        arrays[name] = _column(arrays[name], name, where, len(arrays["x" + "".join(side)]))
    return arrays, _names(listed, where)


def _require_forms(arrays: dict[str, np.ndarray], where: str, order: Order) -> tuple[tuple[str, ...], dict[str, str]]:
    """Refuses arrays whose shapes or types are not those of images or texts and their labels, whatever they hold.

    Returns:
        What `_wanted` returns.
    """
    wanted, columns = _wanted({name: name for name in arrays}, where)
    for images, labels in zip(wanted[::2], wanted[1::2], strict=True):
        if not _are_texts(arrays[images], order.declared.texts):
            _require_images(arrays[images], f"{images} of {where}", order.declared.pixels.levels)
        given = arrays[labels]
        if given.ndim not in (1, 2) or 0 in given.shape[1:] or given.dtype.kind not in "iubf":
            raise malformed(f"{labels} of {where}", given, _LABELS, _WHOLE)
        count = len(arrays[images])
        if len(given) != count:
            one_each = f"{count} labels, one for each image"
            raise malformed(f"{labels} of {where}", given, one_each, "save one label for each image")
        refuse_empty(count, f"{images} of {where}")
    return wanted, columns


def _are_texts(array: np.ndarray, texts: Texts) -> bool:
    """Whether rows are texts as numbers. Flattened images look the same, but have no declared words."""
    return array.ndim == 2 and array.dtype.kind in "iu" and texts.declares_numbers


def _require_images(images: np.ndarray, name: str, levels: Levels | None) -> None:
    shape = (*images.shape, 1) if images.ndim == 3 else images.shape
    if len(shape) != 4 or shape[3] not in (1, 3) or 0 in shape[1:]:
        remedy = "move the channels to the end with numpy.moveaxis(x, 1, -1); of volumes (N, D, H, W) save slices"
        raise malformed(name, images, "images (N, H, W), (N, H, W, 1) or (N, H, W, 3)", remedy)
    deep = images.dtype.kind in "iu" and images.dtype.itemsize == 2
    if deep and levels is None:
        raise undeclared(name)
    if not (deep or images.dtype == np.uint8 or images.dtype.kind == "f"):
        raise malformed(name, images, "uint8", "save uint8 from 0 (black) to 255 (white)")


def _images(images: np.ndarray, name: str, where: str, levels: Levels | None) -> np.ndarray:
    """Images (N, H, W, C): uint8, or 16 bits as stored."""
    if images.ndim == 3:
        images = images[..., np.newaxis]
    if images.dtype == np.uint8:
        return images
    if images.dtype.kind in "iu":
        for index, image in enumerate(images):
            if levels is not None:
                levels.check(image, f"image {index} of {name} of {where}")
        return images.astype(images.dtype.newbyteorder("="))
    result = np.empty(images.shape, np.uint8)
    for index, image in enumerate(images):
        result[index] = to_bytes(image, f"image {index} of {name} of {where}")
    return result


def _labels(labels: np.ndarray, name: str, where: str) -> np.ndarray:
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim == 2:
        if not np.isin(labels, (0, 1)).all():
            raise malformed(f"{name} of {where}", labels, _LABELS, "save 1 for true labels, else 0")
        return labels.astype(np.int64)
    if labels.dtype.kind in "bf":  # 1.0 and true are 1
        if not np.isin(labels, np.arange(len(labels))).all():
            raise malformed(f"{name} of {where}", labels, _LABELS, _WHOLE)
        labels = labels.astype(np.int64)
    for label in (labels.min(initial=0), labels.max(initial=0)):
        if not 0 <= label <= np.iinfo(np.int64).max:
            raise no_class(f"{name} of {where} holds", label)
    return labels.astype(np.int64)


def _names(listed: np.ndarray | None, where: str) -> tuple[str, ...] | None:
    if listed is None:
        return None
    names = tuple(map(to_nfc, listed.tolist())) if listed.dtype.kind == "U" and listed.ndim == 1 else ()
    if len({*names} - {""}) < max(2, len(listed)):
        remedy = "save it as numpy.array(['cat', 'dog']), or leave it out"
        raise malformed(f"classes of {where}", listed, "at least two different names", remedy)
    for name in names:
        class_lists.refuse_unwritable(name, f"classes of {where} holds a name that cannot be used:")
    return names


def _several(
    arrays: dict[str, np.ndarray], names: tuple[str, ...] | None, declared: Labels, where: str
) -> tuple[dict[str, np.ndarray], tuple[str, ...], bool]:
    """The arrays with the selected label columns, the labels' names, and whether the names were given."""
    matrices = {name: array for name, array in arrays.items() if name.startswith("y")}
    width = next(iter(matrices.values())).shape[1]
    if declared.classes is not None:
        raise SfumatoError(
            f"classes are declared, but {where} has {width} labels per image", "name them with `label_columns`"
        )
    chosen = declared.label_columns
    if chosen is None and all((array.sum(1) == 1).all() for array in matrices.values()):
        raise SfumatoError(
            f"each image of {where} has exactly one of {width} labels, as classes have",
            "save y.argmax(1) if they exclude each other; otherwise name them with `label_columns`",
        )
    if (every := names or chosen) and len(every) != width:
        subject = f"classes of {where} names" if names else "`label_columns` names"
        raise SfumatoError(f"{subject} {len(every)} labels, but {where} has {width}", "name each one")
    if names is not None and chosen is not None:
        declared.require_columns(names, where)
        places = [names.index(name) for name in chosen]
        arrays = arrays | {name: array[:, places] for name, array in matrices.items()}
    return arrays, chosen or names or tuple(map(str, range(width))), (chosen or names) is not None


def _classes(
    arrays: dict[str, np.ndarray], names: tuple[str, ...] | None, declared: Labels, where: str
) -> tuple[tuple[str, ...], bool]:
    labels = [array for name, array in arrays.items() if name.startswith("y")]
    largest = int(max(array.max() for array in labels))
    listed = names or declared.classes
    if listed is not None:
        class_lists.require_named(largest, len(listed), f"{where} holds", first=0)
        return declared.classes or listed, True
    if largest >= sum(map(len, labels)):
        raise no_class(f"{where} holds", largest)
    return tuple(str(number) for number in range(largest + 1)), False


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
        reading: further fields of `Parts`.
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
    needed = {f"groups{side}": f"users{side}" for side in sides} | {"users_test": "users_train"}
    for name, other in needed.items():
        if name in columns and other not in columns:
            raise SfumatoError(f"{where} has {name} but no {other}", f"save {other} as well")
    return columns


def _column(column: np.ndarray, name: str, where: str, images: int) -> np.ndarray:
    """Users or groups, text (N,) in composed form. Whole numbers become decimal digits, as in a table."""
    title, of_users = f"{name} of {where}", name.startswith("users")
    if of_users and column.ndim == 2:
        for row, users in enumerate(column.tolist()):
            if len(named := [str(user) for user in users if str(user)]) > 1:
                refuse_several(SEPARATOR.join(named), f"image {row} of {title}")
    if column.shape != (images,) or column.dtype.kind not in "iuU":
        wanted = f"{images} whole numbers or texts, one for each image"
        raise malformed(title, column, wanted, "save numpy.array(['ann', 'bob', ...]), or numbers")
    numbers, names = numbered(column.astype(np.str_))
    for text, row in zip(names, np.unique(numbers, return_index=True)[1].tolist(), strict=True):
        if not text.strip():
            raise missing(f"image {row} of {title}", "name")
        refuse_unwritable(text, f"{title}: the name")
        if of_users:
            refuse_several(text, f"image {row} of {title}")
    return np.array([user_name(text) if of_users else to_nfc(text) for text in names], np.str_)[numbers]
