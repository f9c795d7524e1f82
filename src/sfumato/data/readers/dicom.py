"""DICOM files: one frame in eight bits, and its patient. They are read with pydicom, an optional dependency.

Values are those after the file's modality transformation, such as Hounsfield units. Black and white are declared
(`Levels`), or else taken from the file: from its VOI lookup table, or from its first window. Without these the file
must hold eight bits. Only pixels and the tags that affect them are read, and the patient identifier on request. No tag
is ever shown.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from sfumato._checks import SfumatoError
from sfumato.data.levels import Levels, undeclared
from sfumato.data.paths import refuse_too_large, several_images, unreadable

if TYPE_CHECKING:
    from pydicom import Dataset, FileDataset


MOST_ENTRIES = 2**16
"""Number of entries of a table whose descriptor says 0, since 16 bits cannot express it."""
FEWEST_BITS = 8
"""Smallest width of an entry in bits."""
SPARE_BITS = 2
"""Number of unused declared bits at which the declaration is rejected: the image would use a quarter of its range."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A lookup table. Values up to `first` map to the first entry, and values beyond the end to the last one.

    Args:
        first: value of the first entry.
        entries: uint16 (E,).
        bits: declared number of bits of an entry.

    >>> ramp = Table(first=-100, entries=np.arange(300, dtype=np.uint16), bits=16)
    >>> ramp.apply(np.array([-500, -100, 199, 900])).tolist(), ramp.bits_used
    ([0, 0, 299, 299], 9)
    """

    first: int
    entries: np.ndarray
    bits: int

    @property
    def bits_used(self) -> int:
        """Number of bits of the largest entry, at least 8."""
        return max(FEWEST_BITS, int(self.entries.max()).bit_length())

    def apply(self, values: np.ndarray) -> np.ndarray:
        """The entries, uint16, of values in any shape."""
        places = np.rint(values).astype(np.int64) - self.first
        return self.entries[places.clip(0, len(self.entries) - 1)]

    def range_bits(self) -> int | None:
        """Number of bits of the entries' range; None if declaration and entries contradict each other.

        If 16 bits are declared, the used bits count: several scanner vendors declare the storage size of an entry, of
        which they use 12 bits. Other widths are taken as declared, and have to fit the entries.
        """
        if self.bits == 16:
            return self.bits_used
        return self.bits if 0 <= self.bits - self.bits_used < SPARE_BITS else None


def table(descriptor: Sequence[int], data: bytes | int | Sequence[int], name: str, *, little_endian: bool) -> Table:
    """A table from a file's descriptor and data.

    Entries are stored as 16-bit words or as bytes, which their number determines. Source: DICOM PS3.3, C.11.1.1.1 and
    C.11.2.1.1.

    Args:
        descriptor: number of entries (0 for 65536), first mapped value, and bits of each entry.
        data: stored bytes, or words that were already parsed.
        name: name of the image in errors.
        little_endian: byte order of the file.

    Errors: `UnreadableError` if the number of entries differs from the descriptor, or for negative entries, whose
    meaning is ambiguous.

    >>> table([3, 5, 8], bytes([1, 2, 3, 0]), "image", little_endian=True).entries.tolist()
    [1, 2, 3]
    """
    count, first, bits = (int(number) for number in descriptor)
    count = count or MOST_ENTRIES
    if isinstance(data, bytes):
        words = np.frombuffer(data[: len(data) // 2 * 2], "<u2" if little_endian else ">u2")
    else:
        values = np.atleast_1d(np.asarray(data, np.int64))
        if values.min(initial=0) < 0:
            raise unreadable(name, "has a lookup table with entries below 0")
        words = (values & 0xFFFF).astype("<u2")
    if len(words) == count:
        entries = words.astype(np.uint16)
    elif isinstance(data, bytes) and len(data) == count and count % 2:  # without the padding byte of the last word
        entries = np.frombuffer(data, np.uint8).astype(np.uint16)
    elif len(words) == -(-count // 2):  # the lower byte of a word comes first, whatever the byte order
        entries = np.frombuffer(words.astype("<u2").tobytes(), np.uint8)[:count].astype(np.uint16)
    else:
        raise unreadable(
            name, f"has a lookup table whose descriptor says {count} entries of {bits} bits, but its data have not"
        )
    return Table(first=first, entries=entries, bits=bits)


EXTENSIONS = (".dcm", ".dicom")
"""File name suffixes of DICOM. Many DICOM files have none."""

BY_PATIENT = "dicom"
"""`user_from` if each file's patient identifier is its user."""

_MARK = slice(128, 132)
_COLOURS = ("Red", "Green", "Blue")
_PIXELS = ("PixelData", "FloatPixelData", "DoubleFloatPixelData")
_NEEDED = ("Rows", "Columns", "SamplesPerPixel", "PhotometricInterpretation", "BitsAllocated")
_RESCALE = ("RescaleSlope", "RescaleIntercept")
_MACROS = {
    "PixelValueTransformationSequence": (*_RESCALE, "ModalityLUTSequence"),
    "FrameVOILUTSequence": ("WindowCenter", "WindowWidth", "VOILUTFunction", "VOILUTSequence"),
}
"""Sequences in functional groups, and the tags at the root of the file that each one replaces."""


def is_dicom(content: bytes) -> bool:
    """Whether these are the bytes of a DICOM file, by the mark after the preamble."""
    return content[_MARK] == b"DICM"


def is_dicom_file(path: Path) -> bool:
    """Whether the path is a readable ordinary file with the DICOM mark."""
    try:
        if not path.is_file():  # reading from a pipe might never end
            return False
        with path.open("rb") as file:
            return is_dicom(file.read(_MARK.stop))
    except OSError:
        return False


def shape(content: bytes, name: str) -> tuple[int, int, bool]:
    """Width and height in pixels, and whether the image is grey, without decoding pixels."""
    dataset = _dataset(content, name)
    return dataset.Columns, dataset.Rows, _is_grey(dataset)


def to_eight_bits(content: bytes, levels: Levels | None, name: str) -> Image.Image:
    """The image of a DICOM file in eight bits, grey or in colour.

    Greys are mapped by the declared levels, or else by the file's own window or table, and inverted if the lowest value
    is white (MONOCHROME1). Colours keep their upper eight bits.

    **Guarantee.** The declaration is public, and the result otherwise depends on this file alone, so an image is a
    function of its own record (unit: one record; adjacency: any).

    Args:
        name: name of the image in errors.

    Errors: `UnreadableError` for a file without pixels, with several frames, or with a compression that no installed
    plug-in of pydicom supports; `UndeclaredError` for greys of more than eight bits without declared or stored levels.
    """
    dataset = _dataset(content, name)
    _require_decoder(dataset, name)
    stored = dataset.pixel_array
    if _is_grey(dataset):
        values = _apply_modality(stored, dataset, name)
        if not np.isfinite(values).all():
            raise unreadable(name, "holds values that are not finite")
        greys = _apply_window(values, dataset, name) if levels is None else levels.apply(values, name)
        return Image.fromarray(255 - greys if dataset.PhotometricInterpretation == "MONOCHROME1" else greys)
    colours, bits = stored, dataset.BitsStored
    if dataset.PhotometricInterpretation == "PALETTE COLOR":
        colours, bits = _apply_palette(stored, dataset, name)
    if bits < 8:
        raise unreadable(name, "has colours with fewer than 8 bits", "save it with 8 bits, or remove it")
    return Image.fromarray((colours >> (bits - 8)).astype(np.uint8))


def patient(content: bytes, name: str) -> str:
    """The patient identifier of a DICOM file. Never show or store it; store only the code of its composed form
    (`user_code`).

    Errors: `SfumatoError` for a file that is not DICOM, or has no patient identifier.
    """
    identifier = ""
    if is_dicom(content):
        tags = _library(name).dcmread(io.BytesIO(content), stop_before_pixels=True, specific_tags=["PatientID"])
        identifier = str(tags.get("PatientID") or "").strip()
    if not identifier:
        lacks = "has no patient identifier" if is_dicom(content) else "is no DICOM file"
        raise SfumatoError(
            f"{name} {lacks}, but `user_from={BY_PATIENT}` needs it",
            "remove it, or say whose each image is in a table's column user or by folders",
        )
    return identifier


def _library(name: str) -> Any:
    """Imports all parts of pydicom used here, so that a missing package is never mistaken for a broken file."""
    try:
        import pydicom
        import pydicom.pixels.decoders.base
        import pydicom.pixels.processing
    except ImportError:
        raise SfumatoError(
            f"{name} is a DICOM file, but pydicom 3 is not installed", "pip install 'sfumato[dicom]'"
        ) from None
    return pydicom


def _dataset(content: bytes, name: str) -> FileDataset:
    """The file's tags, those of functional groups among them. Refuses files without a single image of allowed size, and
    files that lack the value of a tag which their pixels depend on.

    Source: DICOM PS3.3, C.7.6.16 (functional groups of enhanced images; C.7.6.16.2.9 and C.7.6.16.2.10).
    """
    dataset = _library(name).dcmread(io.BytesIO(content))
    if not any(pixels in dataset for pixels in _PIXELS):
        raise unreadable(name, "is a DICOM file without an image", "remove it")
    shared, by_frame = (dataset.get(f"{scope}FunctionalGroupsSequence") or [] for scope in ("Shared", "PerFrame"))
    frames = max(int(dataset.get("NumberOfFrames") or 1), len(by_frame))
    if frames != 1:
        raise several_images(name, f"has {frames} frames", "each frame")
    for group, (macro, replaced) in itertools.product((*shared, *by_frame), _MACROS.items()):
        for item in (group.get(macro) or [])[:1]:
            for tag in replaced:
                dataset.pop(tag, None)
            dataset.update(item)
    coded = ("BitsStored", "PixelRepresentation") if "PixelData" in dataset else ()
    for tag in (*_NEEDED, *coded, *(_RESCALE if any(tag in dataset for tag in _RESCALE) else ())):
        if dataset.get(tag) in (None, ""):
            raise unreadable(name, f"is a DICOM file without a value of {tag}", "fill it in, or remove the file")
    refuse_too_large(dataset.Rows * dataset.Columns, name)
    return dataset


def _is_grey(dataset: FileDataset) -> bool:
    return dataset.PhotometricInterpretation in ("MONOCHROME1", "MONOCHROME2")


def _require_decoder(dataset: FileDataset, name: str) -> None:
    """Refuses a file whose compression is not supported."""
    syntax = dataset.file_meta.TransferSyntaxUID
    if not syntax.is_encapsulated:
        return
    available = False
    with contextlib.suppress(NotImplementedError):
        available = _library(name).pixels.decoders.base.get_decoder(syntax).is_available
    if not available:
        compression = "privately" if syntax.is_private else syntax.name
        raise unreadable(
            name,
            f"is compressed ({compression}), and no installed plug-in of pydicom can decode it",
            "pip install 'pylibjpeg[all]', save it uncompressed, or remove it",
        )


def _apply_window(values: np.ndarray, dataset: FileDataset, name: str) -> np.ndarray:
    """Greys uint8 (H, W) by the file's own table or window.

    Source: DICOM PS3.3, C.11.2 (VOI LUT module). The first of several tables or windows is used.
    """
    pydicom = _library(name)
    if dataset.get("VOILUTSequence"):
        return _apply_voi(values, dataset, name)
    center, width = (_first_number(dataset, tag) for tag in ("WindowCenter", "WindowWidth"))
    if center is not None and width is not None and width >= 1:
        into = pydicom.Dataset()  # white is 255
        into.PhotometricInterpretation, into.PixelRepresentation, into.BitsStored = "MONOCHROME2", 0, 8
        into.WindowCenter, into.WindowWidth = center, width
        into.VOILUTFunction = dataset.get("VOILUTFunction") or "LINEAR"
        return np.rint(pydicom.pixels.processing.apply_windowing(values, into)).astype(np.uint8)
    as_stored = (_first_number(dataset, "RescaleSlope"), _first_number(dataset, "RescaleIntercept")) in (
        (None, None),
        (1, 0),
    )
    unsigned = not dataset.get("PixelRepresentation") and "ModalityLUTSequence" not in dataset
    if as_stored and unsigned and dataset.get("BitsStored", 64) <= 8:
        return np.rint(values * (255 / (2**dataset.BitsStored - 1))).astype(np.uint8)
    raise undeclared(name, "no window")


def _apply_modality(stored: np.ndarray, dataset: FileDataset, name: str) -> np.ndarray:
    """Values after the file's modality transformation, in the shape of the stored pixels.

    Source: DICOM PS3.3, C.11.1 (modality LUT module).
    """
    if dataset.get("ModalityLUTSequence"):
        lut = _table(dataset, dataset.ModalityLUTSequence[0], "LUT{}", name)
        return _signed(lut, bool(dataset.get("PixelRepresentation"))).apply(stored)
    return _library(name).pixels.processing.apply_modality_lut(stored, dataset)


def _apply_voi(values: np.ndarray, dataset: FileDataset, name: str) -> np.ndarray:
    """Greys uint8 by the file's VOI lookup table."""
    lut = _table(dataset, dataset.VOILUTSequence[0], "LUT{}", name)
    below = dataset.get("PixelRepresentation") or (_first_number(dataset, "RescaleIntercept") or 0) < 0
    lut = _signed(lut, bool(below and not dataset.get("ModalityLUTSequence")))
    bits = lut.range_bits()
    if bits is None:
        raise undeclared(name, f"a table of values of interest of {lut.bits} bits that reach {lut.entries.max()}")
    return np.rint(lut.apply(values) * (255 / (2**bits - 1))).astype(np.uint8)


def _signed(lut: Table, values_below_0: bool) -> Table:
    """The table with a signed first mapped value if values may be below 0. Files with unsigned pixels, and writers
    without signed descriptors, store it as unsigned."""
    return replace(lut, first=lut.first - 2**16) if values_below_0 and lut.first >= 2**15 else lut


def _apply_palette(stored: np.ndarray, dataset: FileDataset, name: str) -> tuple[np.ndarray, int]:
    """Colours (H, W, 3) of palette indices, and their number of bits.

    Source: DICOM PS3.3, C.7.6.3.1.5 and C.7.6.3.1.6.
    """
    if "RedPaletteColorLookupTableData" in dataset:
        tables = [_table(dataset, dataset, f"{colour}PaletteColorLookupTable{{}}", name) for colour in _COLOURS]
        bits = max(lut.bits_used for lut in tables)
        return np.stack([lut.apply(stored) for lut in tables], axis=-1), 16 if bits > 16 - SPARE_BITS else bits
    count, _, bits = dataset.RedPaletteColorLookupTableDescriptor
    if bits == 8 and not 0 < count <= 256:
        problem = f"has a segmented palette of {count or 2**16} entries of 8 bits"
        raise unreadable(name, problem, "save it as RGB, or remove it")
    colours = _library(name).pixels.processing.apply_color_lut(stored, dataset)[..., :3]
    return colours, 8 * colours.itemsize


def _table(dataset: FileDataset, item: Dataset, called: str, name: str) -> Table:
    """The lookup table in an item of the file; `called` is the pattern of its tag names."""
    little = dataset.file_meta.TransferSyntaxUID.is_little_endian
    return table(item[called.format("Descriptor")].value, item[called.format("Data")].value, name, little_endian=little)


def _first_number(dataset: FileDataset, tag: str) -> float | None:
    """The first value of a numeric tag; None if absent or not finite."""
    from pydicom.multival import MultiValue

    value = dataset.get(tag)
    value = value[0] if isinstance(value, MultiValue) and value else value
    number = math.nan if value in (None, "") or isinstance(value, MultiValue) else float(value)
    return number if math.isfinite(number) else None
