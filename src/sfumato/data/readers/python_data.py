"""Recognises data from Python and selects their reader.

Data from Python: arrays and tensors like those of an archive, and map-style data sets, such as torchvision's, whose
items are pairs of image and label.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from PIL import Image, ImageOps

from sfumato._checks import SfumatoError
from sfumato.data import classes as class_lists
from sfumato.data import decoding
from sfumato.data.classes import declared_names, notes_on_parts, part_by_name, test_part
from sfumato.data.declared import Order
from sfumato.data.kinds import KINDS, parse
from sfumato.data.readers.arrays import malformed, parts_from_arrays
from sfumato.data.readers.files import load_files
from sfumato.data.readers.listing import ListingBuilder, refuse_empty
from sfumato.data.record_users import refuse_several
from sfumato.data.source import Parts

TAKEN = (
    "a spelling such as 'folder:pictures', an opened Source, arrays (images, labels) or (x_train, y_train, x_test, "
    "y_test), a map-style torch Dataset, a pair of them or {'train': ..., 'test': ...}, a Dataset or DatasetDict of "
    "Hugging Face, or a pandas DataFrame with the columns path and label"
)


@dataclass(frozen=True, kw_only=True)
class ReaderChoice:
    """A source to read, from a spelling or from data.

    Args:
        kind: kind of the source.
        where: name of the source in errors.
        load: its reader.
        like: the kind in `KINDS` whose declared facts its reader can use.
        spelt: whether it was given by a spelling, and therefore has a place.
    """

    kind: str
    where: str
    load: Callable[[Order], Parts]
    like: str
    spelt: bool = False


def choose_reader(source: Any) -> ReaderChoice:
    """The source and its reader.

    Args:
        source: a spelling, or data from Python: see `open_source`.

    Errors: `SfumatoError` for anything else.
    """
    if isinstance(source, str):
        name, argument = parse(source)
        load = lambda order: KINDS[name].load(argument, order)  # noqa: E731
        return ReaderChoice(kind=name, where=source, load=load, like=name, spelt=True)
    if _is_instance("pandas", "DataFrame", source):
        from sfumato.data.readers.table import read_frame

        return ReaderChoice(
            kind="frame", where="the DataFrame", load=lambda order: read_frame(source, order), like="csv"
        )
    named = _by_part(source)
    if named and all(_is_instance("datasets", "Dataset", data) for data in named.values()):
        from sfumato.data.readers.arrow import from_sets

        where = "the Dataset" if None in named else "the DatasetDict"
        return ReaderChoice(kind="hf", where=where, load=lambda order: from_sets(named, order, where), like="hf")
    if (arrays := _arrays(source)) is not None:
        return ReaderChoice(kind="arrays", where=WHERE, load=lambda order: load_arrays(arrays, order), like="npz")
    if (sets := _sets(source)) is not None:
        where = f"the {type(next(iter(sets.values()))).__name__}"
        return ReaderChoice(kind="dataset", where=where, load=lambda order: load_sets(sets, order, where), like="npz")
    return refuse(source)


def refuse(value: Any) -> NoReturn:
    """Refuses objects that are not data."""
    if isinstance(value, os.PathLike):
        parse(os.fspath(value))
    members = value if isinstance(value, (tuple, list)) else value.values() if isinstance(value, Mapping) else (value,)
    form, remedy = type(value).__name__, f"give {TAKEN}"
    if loaders := [*filter(is_loader, members)]:
        form = type(loaders[0]).__name__
        remedy = "give its `.dataset`: the plan itself samples the participants of each step"
    elif (
        isinstance(value, Iterator)
        or _is_instance("datasets", ("IterableDataset", "IterableDatasetDict"), value)
        or _is_instance("torch.utils.data", "IterableDataset", value)
        or (hasattr(value, "__getitem__") and not hasattr(value, "__len__"))
    ):
        remedy = "give a map-style data set (with __getitem__ and __len__): each step samples from all records"
    elif isinstance(value, (tuple, list)):
        form += f" of {len(value)}"
    raise SfumatoError(f"source must be data, got {form}", remedy)


def _is_instance(module: str, names: str | tuple[str, ...], value: Any) -> bool:
    """Whether the object is an instance of these classes of a module, without importing it."""
    imported = sys.modules.get(module)
    names = (names,) if isinstance(names, str) else names
    kinds = [kind for name in names if isinstance(kind := getattr(imported, name, None), type)]
    return isinstance(value, tuple(kinds))


def _by_part(source: Any) -> dict[str | None, Any]:
    """Data by part name: the keys of a mapping; train and test for a pair; None for a single object."""
    if isinstance(source, Mapping):
        return dict(source)
    if isinstance(source, (tuple, list)) and len(source) == 2:
        return dict(zip(("train", "test"), source, strict=True))
    return {None: source}


def _arrays(source: Any) -> dict[str, Any] | None:
    """Arrays under the names of an archive."""
    if isinstance(source, Mapping):
        arrays = dict(source)
        return arrays if {"x", "x_train"} & set(arrays) and all(map(is_array, arrays.values())) else None
    if not isinstance(source, (tuple, list)) or len(source) not in NAMES or not all(map(is_array, source)):
        return None
    return dict(zip(NAMES[len(source)], source, strict=True))


def _sets(source: Any) -> dict[str | None, Any] | None:
    """Map-style data sets by part name, or a single one. A list of images with labels is a data set."""
    if isinstance(source, (tuple, list)) and len(source) == 2 and isinstance(source[0], list) and is_array(source[1]):
        images, labels = source
        return {None: list(zip(images, labels, strict=True))} if len(images) == len(labels) else None
    named = _by_part(source)
    if [*named] != [None]:
        parts = [part_by_name(str(name)) for name in named]
        if "train" not in parts or None in parts or len({*parts}) < len(parts):
            return None
        named = dict(zip(parts, named.values(), strict=True))
    return named if all(map(is_map_style, named.values())) else None


NAMES = {2: ("x", "y"), 4: ("x_train", "y_train", "x_test", "y_test")}
"""Names in an archive, by the number of arrays."""
WHERE = "the arrays"


def is_array(value: Any) -> bool:
    """Whether the object is an array, a tensor, or a list of labels (numbers or names)."""
    if isinstance(value, (list, tuple)):
        return bool(value) and all(isinstance(label, (str, int, np.integer)) for label in value)
    return hasattr(value, "__array__") and hasattr(value, "shape") and hasattr(value, "dtype")


def load_arrays(source: Mapping[str, Any], order: Order) -> Parts:
    """Both parts of arrays and tensors, which are read like those of an archive (`readers.arrays.load`).

    Tensors of images are (N, C, H, W) if C is 1 or 3, else (N, H, W, C) or (N, H, W). For arrays, (N, H, W, C) takes
    precedence. Labels may be names.
    """
    arrays = {
        name: _images(array, name) if name.startswith("x") else array_of(array, name) for name, array in source.items()
    }
    spoken = {name: array for name, array in arrays.items() if name.startswith("y") and array.dtype.kind in "UO"}
    if spoken:
        texts = {name: _texts(array, name) for name, array in spoken.items()}
        distinct = class_lists.sort_names({text for labels in texts.values() for text in labels})
        if order.declared.labels.classes is None:
            class_lists.refuse_reordered(distinct, WHERE)
        names = order.declared.labels.classes or distinct
        for text in distinct:
            class_lists.require_declared(text, names, f"{WHERE} hold", "the images")
        places = {name: place for place, name in enumerate(names)}
        arrays |= {name: np.array([places[text] for text in labels], np.int64) for name, labels in texts.items()}
        if len(names) > 1:
            arrays["classes"] = np.array(names, np.str_)
    return parts_from_arrays(arrays, order, where=WHERE)


def array_of(value: Any, name: str) -> np.ndarray:
    """The object as an array in main memory, whatever a tensor's device."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    try:
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as problem:
        message = f"{name} of {WHERE} is not an array ({problem})"
        raise SfumatoError(message, "give a numpy array, or a tensor of uint8 or float32") from None


def _images(value: Any, name: str) -> np.ndarray:
    return channels_last(array_of(value, name), tensors=hasattr(value, "detach"))


def channels_last(images: np.ndarray, *, tensors: bool) -> np.ndarray:
    """Images (..., H, W, C), with channels moved to the end if they come first, as is usual for tensors.

    >>> channels_last(np.zeros((5, 3, 8, 8)), tensors=True).shape
    (5, 8, 8, 3)
    """
    first, last = images.ndim > 2 and images.shape[-3] in (1, 3), images.ndim > 2 and images.shape[-1] in (1, 3)
    return np.moveaxis(images, -3, -1) if first and (tensors or not last) else images


def _texts(labels: np.ndarray, name: str) -> list[str]:
    texts = labels.tolist()
    if labels.ndim != 1 or not all(isinstance(text, str) and text.strip() for text in texts):
        raise malformed(f"{name} of {WHERE}", labels, "class names (N,)", "give one for each image, or integers from 0")
    return [class_lists.to_nfc(text.strip()) for text in texts]


_CODE = 16
_ITEMS = (
    "let each item be (image, label), or a mapping with image, label and perhaps user; an image is one of PIL, or an "
    "array or tensor of bytes or of numbers in [0, 1]"
)


def is_map_style(value: Any) -> bool:
    """Whether the object is a map-style data set, or a list of pairs."""
    if isinstance(value, list):
        return len(value) > 2 and all(isinstance(pair, tuple) and len(pair) == 2 for pair in value)
    if isinstance(value, (str, bytes, tuple, Mapping)) or hasattr(value, "__array__") or is_loader(value):
        return False
    try:
        return hasattr(value, "__getitem__") and len(value) >= 0
    except (TypeError, NotImplementedError):
        return False


def is_loader(value: Any) -> bool:
    """Whether the object is torch's `DataLoader`, or similar."""
    return hasattr(value, "dataset") and hasattr(value, "batch_size")


class Items:
    """Images of data sets, read again on each access. Items that change are refused.

    Only a hash of each item stays in memory, so a data set may have any size.

    Args:
        sets: map-style data sets, concatenated.
        where: name of the data sets in errors.
    """

    room = math.inf

    def __init__(self, sets: Sequence[Any], where: str):
        self._sets, self._where = tuple(sets), where
        self._starts = np.cumsum([0, *map(len, self._sets)]).tolist()
        self._codes: dict[int, bytes] = {}
        self._lock = threading.Lock()  # most data sets are not thread-safe

    def __len__(self) -> int:
        return self._starts[-1]

    def name(self, place: int) -> str:
        """Name of an item: its index in its data set."""
        part = self.part(place)
        which = "" if len(self._sets) == 1 else f"{('train', 'test')[part]} "
        return f"{which}item {place - self._starts[part]} of {self._where}"

    def read(self, place: int) -> bytes:
        """The image as a lossless file."""
        return self.item(place)[0]

    def item(self, place: int) -> tuple[bytes, Any, str | None]:
        """Image, label and user. `SfumatoError` if they differ from the first read."""
        part, name = self.part(place), self.name(place)
        with self._lock:
            record = self._sets[part][place - self._starts[part]]
        image, label, user = _unpack(record, name)
        content, label = encode_image(image, name), _label(label, name)
        code = hashlib.blake2b(content + repr((label, user)).encode(), digest_size=_CODE).digest()
        if self._codes.setdefault(place, code) != code:
            raise SfumatoError(
                f"{name} has changed since it was first read",
                "give a data set without random transforms; the training itself augments images (flip, shift, views)",
            )
        return content, label, user

    def part(self, place: int) -> int:
        """Index of the data set that holds an item."""
        return int(np.searchsorted(self._starts, place, side="right")) - 1


def load_sets(sets: Mapping[str | None, Any], order: Order, where: str) -> Parts:
    """Both parts of data sets with names (`part_in_name`), or of a single one, split by a keyed hash of each image.

    Items are (image, label), or mappings with the keys image, label and optionally user. Labels are names, or whole
    numbers, which the data set's `classes` name if present; with `label_columns` declared, rows of 0 and 1. Each item
    is read more than once, and items that change are refused.
    """
    parts = ["train", test_part(sets)] if len(sets) > 1 else [None]
    read = [sets[part] for part in parts] if len(sets) > 1 else [*sets.values()]
    stored, builder = Items(read, where), ListingBuilder()
    names = [_names_of(data) for data in read]  # per data set: two folders may number the same classes differently
    several = order.declared.labels.label_columns
    for place in range(len(stored)):
        _, label, user = stored.item(place)
        name, part = stored.name(place), stored.part(place)
        refuse_several(user or "", str(name))
        builder.add(_label_name(label, names[part], several, name), part=parts[part], user=user)
        if order.progress is not None:
            order.progress(place + 1, len(stored))
        if bool(user) != ("user" in builder.optional_facts):
            raise SfumatoError(f"{name} says otherwise than others whether it has a user", "give each item its user")
    refuse_empty(len(builder), where)
    for place in range(min(8, len(stored))):  # detects random transforms early
        stored.item(place)
    written = names[0] if not several and len(set(names)) == 1 else None
    listing = builder.listing(stored, written=written)
    return load_files(
        listing.numbered(order.declared.labels.classes), order, where=where, notes=notes_on_parts(sets, where)
    )


def _unpack(item: Any, name: str) -> tuple[Any, Any, str | None]:
    if isinstance(item, Mapping) and {"image", "label"} <= set(item):
        user = item.get("user")
        return item["image"], item["label"], None if user is None else str(user)
    if isinstance(item, (tuple, list)) and len(item) == 2:
        return item[0], item[1], None
    form = f"{len(item)} things" if isinstance(item, (tuple, list)) else f"a {type(item).__name__}"
    if isinstance(item, Mapping):
        form += f" with the keys {', '.join(map(str, item))[:100]}"
    raise SfumatoError(f"{name} is {form}, and no pair of image and label", _ITEMS)


def _label(label: Any, name: str) -> str | int | tuple[int, ...]:
    if isinstance(label, str) and label.strip():
        return label.strip()
    values = array_of(label, f"the label of {name}")
    if values.dtype.kind in "iub" and values.size == 1 and values.ndim < 2:
        return int(values.reshape(()))
    if values.ndim == 1 and values.dtype.kind in "iubf" and np.isin(values, (0, 1)).all():
        return tuple(int(value) for value in values)
    form = f"{values.dtype} {values.shape}" if values.dtype.kind in "iubf" else type(label).__name__
    raise SfumatoError(f"the label of {name} is {form}", "give an integer from 0, or the class's name")


def _label_name(
    label: str | int | tuple[int, ...], names: tuple[str, ...] | None, several: tuple[str, ...] | None, name: str
) -> str | tuple[int, ...]:
    """The name of the class; or 0 or 1 for each of several labels."""
    if isinstance(label, tuple) != (several is not None) or (several and len(label) != len(several)):  # type: ignore[arg-type]
        count = len(label) if isinstance(label, tuple) else 1
        remedy = f"name all {count} as `label_columns`" if count > 1 else "leave `label_columns` out"
        raise SfumatoError(f"{name} has {count} labels, and {len(several or ()) or 1} declared", remedy)
    if not isinstance(label, int):
        return label
    if label < 0 or (names is not None and label >= len(names)):
        raise class_lists.no_class(f"{name} has", label)
    return str(label) if names is None else names[label]


def _names_of(data: Any) -> tuple[str, ...] | None:
    """The class names of torchvision's data sets, and of `Subset` and `ConcatDataset` of them; else None."""
    classes = next((getattr(data, name) for name in ("classes", "categories") if hasattr(data, name)), None)
    if classes is None and hasattr(data, "dataset"):
        return _names_of(data.dataset)
    if classes is None and hasattr(data, "datasets"):
        several = {_names_of(member) for member in data.datasets}
        return several.pop() if len(several) == 1 else None
    if not isinstance(classes, (list, tuple)) or len(classes) < 2:
        return None
    names = [", ".join(name) if isinstance(name, tuple) else name for name in classes]  # ImageNet has synonyms
    return declared_names(names) if all(isinstance(name, str) for name in names) else None


def encode_image(image: Any, name: str) -> bytes:
    """An image as the bytes of a lossless file. The encoding is deterministic.

    Args:
        image: a Pillow image; or an array or tensor (H, W), (H, W, C) or (C, H, W), C = 1 or 3: uint8, uint16 (mapped
            by declared levels), or numbers in [0, 1].
        name: name of the image in errors.
    """
    if not isinstance(image, Image.Image):
        image = _as_image(image, name)
    with decoding.quiet_decoder(), decoding.image_errors(name):
        image = decoding.in_srgb(ImageOps.exif_transpose(image))
        stream = io.BytesIO()
        image.save(stream, "PPM" if image.mode in ("L", "RGB") else "TIFF")
    return stream.getvalue()


def _as_image(image: Any, name: str) -> Image.Image:
    if not hasattr(image, "__array__"):
        raise SfumatoError(f"the image of {name} is a {type(image).__name__}", _ITEMS)
    array = channels_last(array_of(image, f"the image of {name}"), tensors=hasattr(image, "detach"))
    array = array[..., 0] if array.ndim == 3 and array.shape[2] == 1 else array
    plane = array.ndim == 2
    if 0 in array.shape or not (plane or (array.ndim == 3 and array.shape[2] == 3)):
        raise malformed(f"the image of {name}", array, "(H, W), or (H, W, 3) in colour", _ITEMS)
    if array.dtype.kind == "f":
        remedy = "give the data set without Normalize: images are scaled here by public constants"
        array = decoding.to_bytes(array, f"the image of {name}", remedy)
    if array.dtype == np.uint8 or (array.dtype == np.uint16 and plane):
        return Image.fromarray(np.ascontiguousarray(array))
    raise malformed(f"the image of {name}", array, "bytes or numbers in [0, 1]", _ITEMS)
