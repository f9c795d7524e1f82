"""DICOM files: one frame in eight bits, and whose it is. They are read by pydicom, which is an extra.

Values are those after the file's own modality transformation, such as Hounsfield units. Which of them are black and
white is declared (`Levels`), or else the file says so: by its table of values of interest, or by its first window. A
file that says neither has to hold eight bits. Nothing but pixels and the tags that shape them is looked at, and the
patient's identifier where it is asked for; no tag is told to anybody.
"""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from sfumato._checks import SfumatoError
from sfumato.data.images.levels import Levels, UndeclaredError
from sfumato.data.paths import UnreadableError, refuse_too_large

if TYPE_CHECKING:
    from pydicom import Dataset, FileDataset


MOST_ENTRIES = 2**16
"""Entries of a table whose descriptor says 0, which 16 bits cannot count."""
FEWEST_BITS = 8
"""Bits of the narrowest entries."""
SPARE_BITS = 2
"""How many declared bits no entry uses where the declaration is not believed: an image of a quarter of its range."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A lookup table: values up to `first` take its first entry, and values beyond its end the last one.

    Args:
        first: the value that the first entry is for.
        entries: uint16 (E,).
        bits: how many bits an entry has, as declared.

    >>> ramp = Table(first=-100, entries=np.arange(300, dtype=np.uint16), bits=16)
    >>> ramp.applied(np.array([-500, -100, 199, 900])).tolist(), ramp.bits_used
    ([0, 0, 299, 299], 9)
    """

    first: int
    entries: np.ndarray
    bits: int

    @property
    def bits_used(self) -> int:
        """How many bits the largest entry needs, at least 8."""
        return max(FEWEST_BITS, int(self.entries.max()).bit_length())

    def applied(self, values: np.ndarray) -> np.ndarray:
        """The entries, uint16, of values in any shape."""
        places = np.rint(values).astype(np.int64) - self.first
        return self.entries[places.clip(0, len(self.entries) - 1)]

    def range_bits(self) -> int | None:
        """The bits of the range that the entries lie in; None where declaration and entries contradict each other.

        Of 16 declared bits those that are used: several makers of scanners declare the storage of an entry there, and
        12 bits in it. Another width is meant as it is declared, and has to fit the entries.
        """
        if self.bits == 16:
            return self.bits_used
        return self.bits if 0 <= self.bits - self.bits_used < SPARE_BITS else None


def table(descriptor: Sequence[int], data: bytes | int | Sequence[int], name: str, *, little_endian: bool) -> Table:
    """A table from a file's descriptor and data.

    Entries are stored in words of 16 bits, or in bytes; which, is told by how many there are. Source: DICOM PS3.3,
    C.11.1.1.1 and C.11.2.1.1.

    Args:
        descriptor: the number of entries (0 for 65536), the first value that is mapped, and bits for each entry.
        data: bytes as they are stored, or words that have been read already.
        name: what to call the image in a refusal.
        little_endian: how the file stores words.

    Errors: `UnreadableError` where the data has another number of entries than the descriptor says, or signed ones
    below 0, which may be meant so or as large ones.

    >>> table([3, 5, 8], bytes([1, 2, 3, 0]), "image", little_endian=True).entries.tolist()
    [1, 2, 3]
    """
    count, first, bits = (int(one) for one in descriptor)
    count = count or MOST_ENTRIES
    if isinstance(data, bytes):
        words = np.frombuffer(data[: len(data) // 2 * 2], "<u2" if little_endian else ">u2")
    else:
        given = np.atleast_1d(np.asarray(data, np.int64))
        if given.min(initial=0) < 0:
            raise UnreadableError(f"{name} has a lookup table with entries below 0", "replace the file, or take it out")
        words = (given & 0xFFFF).astype("<u2")
    if len(words) == count:
        entries = words.astype(np.uint16)
    elif isinstance(data, bytes) and len(data) == count and count % 2:  # without the byte that fills the last word up
        entries = np.frombuffer(data, np.uint8).astype(np.uint16)
    elif len(words) == -(-count // 2):  # the lower byte of a word comes first, in either order of bytes
        entries = np.frombuffer(words.astype("<u2").tobytes(), np.uint8)[:count].astype(np.uint16)
    else:
        raise UnreadableError(
            f"{name} has a lookup table whose descriptor says {count} entries of {bits} bits, which its data has not",
            "replace the file, or take it out",
        )
    return Table(first=first, entries=entries, bits=bits)


EXTENSIONS = (".dcm", ".dicom")
"""File name endings of DICOM; many such files have none."""

BY_PATIENT = "dicom"
"""`user_from` where each file's own patient identifier says whose image it is."""

_MARK = slice(128, 132)
_COLOURS = ("Red", "Green", "Blue")
_PIXELS = ("PixelData", "FloatPixelData", "DoubleFloatPixelData")


def is_dicom(content: bytes) -> bool:
    """Whether these are a DICOM file's bytes: by the mark behind its preamble, whatever the file is called."""
    return content[_MARK] == b"DICM"


def is_dicom_file(path: Path) -> bool:
    """Whether it is an ordinary file that can be opened and begins so."""
    try:
        if not path.is_file():  # reading from a pipe might never end
            return False
        with path.open("rb") as file:
            return is_dicom(file.read(_MARK.stop))
    except OSError:
        return False


def shape(content: bytes, name: str) -> tuple[int, int, bool]:
    """Width and height in pixels, and whether the image is grey, before any pixel is decoded."""
    dataset = _dataset(content, name)
    return dataset.Columns, dataset.Rows, _is_grey(dataset)


def in_eight_bits(content: bytes, levels: Levels | None, name: str) -> Image.Image:
    """The image of a DICOM file in eight bits, grey or in colour.

    Greys by the declared levels, else by what the file itself says; inverted where the file says that its lowest value
    is white (MONOCHROME1). Of colours the upper eight bits.

    **Guarantee.** The declaration is public, and whatever else decides stands in this file alone, so an image is a
    function of its own record (unit: one record; adjacency: any).

    Args:
        name: what to call the image in a refusal.

    Errors: `UnreadableError` for a file without pixels, with several frames, or compressed in a way that no installed
    plug-in of pydicom unpacks; `UndeclaredError` for greys of more than eight bits for which nothing says what is black
    and white.
    """
    dataset = _dataset(content, name)
    _require_decoder(dataset, name)
    stored = dataset.pixel_array
    if _is_grey(dataset):
        values = _after_modality(stored, dataset, name)
        if not np.isfinite(values).all():
            raise UnreadableError(f"{name} holds values that are not finite", "replace the file, or take it out")
        greys = _windowed(values, dataset, name) if levels is None else levels.applied(values, name)
        return Image.fromarray(255 - greys if dataset.PhotometricInterpretation == "MONOCHROME1" else greys)
    colours, bits = stored, dataset.BitsStored
    if dataset.PhotometricInterpretation == "PALETTE COLOR":
        colours, bits = _of_palette(stored, dataset, name)
    if bits < 8:
        raise UnreadableError(f"{name} has colours of fewer than 8 bits", "save it with 8 bits, or take it out")
    return Image.fromarray((colours >> (bits - 8)).astype(np.uint8))


def patient(content: bytes, name: str) -> str:
    """The patient identifier of a DICOM file, as it is written: never to be told or kept, but by a code of its composed
    form (`user_code`).

    Errors: `SfumatoError` for a file that is no DICOM, or has no patient identifier.
    """
    identifier = ""
    if is_dicom(content):
        tags = _library(name).dcmread(io.BytesIO(content), stop_before_pixels=True, specific_tags=["PatientID"])
        identifier = str(tags.get("PatientID") or "").strip()
    if not identifier:
        lacks = "has no patient identifier" if is_dicom(content) else "is no DICOM file"
        raise SfumatoError(
            f"{name} {lacks}, and `user_from={BY_PATIENT}` takes its user from there",
            "take it out, or say whose each image is in a table's column user or by folders",
        )
    return identifier


def _library(name: str) -> Any:
    """All of pydicom that is used here, so that its absence is never taken for a broken file."""
    try:
        import pydicom
        import pydicom.pixels.decoders.base
        import pydicom.pixels.processing
    except ImportError:
        raise SfumatoError(
            f"{name} is a DICOM file, and pydicom 3 is not installed", "pip install 'sfumato[dicom]'"
        ) from None
    return pydicom


def _dataset(content: bytes, name: str) -> FileDataset:
    """The file's tags, of one image that is not too large."""
    dataset = _library(name).dcmread(io.BytesIO(content))
    if not any(pixels in dataset for pixels in _PIXELS):
        raise UnreadableError(f"{name} is a DICOM file without an image", "take it out")
    frames = int(dataset.get("NumberOfFrames") or 1)
    if frames != 1:
        raise UnreadableError(
            f"{name} has {frames} frames, and one image is wanted",
            "save each frame as a file of its own, or take it out",
        )
    refuse_too_large(dataset.Rows * dataset.Columns, name)
    return dataset


def _is_grey(dataset: FileDataset) -> bool:
    return dataset.PhotometricInterpretation in ("MONOCHROME1", "MONOCHROME2")


def _require_decoder(dataset: FileDataset, name: str) -> None:
    """Refuse a file that is compressed in a way that nothing here unpacks."""
    syntax = dataset.file_meta.TransferSyntaxUID
    if not syntax.is_encapsulated:
        return
    available = False
    with contextlib.suppress(NotImplementedError):
        available = _library(name).pixels.decoders.base.get_decoder(syntax).is_available
    if not available:
        raise UnreadableError(
            f"{name} is compressed ({'privately' if syntax.is_private else syntax.name}), and no plug-in of pydicom "
            "that is installed unpacks it",
            "pip install 'pylibjpeg[all]', save it uncompressed, or take it out",
        )


def _windowed(values: np.ndarray, dataset: FileDataset, name: str) -> np.ndarray:
    """Greys uint8 by what the file says of its values, in their shape (H, W).

    Source: DICOM PS3.3, C.11.2 (VOI LUT module); of several tables or windows the first.
    """
    pydicom = _library(name)
    if dataset.get("VOILUTSequence"):
        return _of_interest(values, dataset, name)
    center, width = (_first(dataset, tag) for tag in ("WindowCenter", "WindowWidth"))
    if center is not None and width is not None and width >= 1:
        into = pydicom.Dataset()  # which says that white is 255
        into.PhotometricInterpretation, into.PixelRepresentation, into.BitsStored = "MONOCHROME2", 0, 8
        into.WindowCenter, into.WindowWidth = center, width
        into.VOILUTFunction = dataset.get("VOILUTFunction") or "LINEAR"
        return np.rint(pydicom.pixels.processing.apply_windowing(values, into)).astype(np.uint8)
    as_stored = (_first(dataset, "RescaleSlope"), _first(dataset, "RescaleIntercept")) in ((None, None), (1, 0))
    unsigned = not dataset.get("PixelRepresentation") and "ModalityLUTSequence" not in dataset
    if as_stored and unsigned and dataset.get("BitsStored", 64) <= 8:
        return np.rint(values * (255 / (2**dataset.BitsStored - 1))).astype(np.uint8)
    raise UndeclaredError(
        f"{name} has no window of its own, and which of its values are black and white was not declared",
        "declare a `window` (black and white), such as -160,240, or a `bit_depth`",
    )


def _after_modality(stored: np.ndarray, dataset: FileDataset, name: str) -> np.ndarray:
    """Values after the file's own modality transformation, in the shape of what is stored.

    Source: DICOM PS3.3, C.11.1 (modality LUT module).
    """
    if dataset.get("ModalityLUTSequence"):
        found = _table(dataset, dataset.ModalityLUTSequence[0], "LUT{}", name)
        return _signed(found, bool(dataset.get("PixelRepresentation"))).applied(stored)
    return _library(name).pixels.processing.apply_modality_lut(stored, dataset)


def _of_interest(values: np.ndarray, dataset: FileDataset, name: str) -> np.ndarray:
    """Greys uint8 by the file's own table of values of interest."""
    found = _table(dataset, dataset.VOILUTSequence[0], "LUT{}", name)
    below = dataset.get("PixelRepresentation") or (_first(dataset, "RescaleIntercept") or 0) < 0
    found = _signed(found, bool(below and not dataset.get("ModalityLUTSequence")))
    bits = found.range_bits()
    if bits is None:
        raise UndeclaredError(
            f"{name} has a table of values of interest of {found.bits} bits whose entries reach {found.entries.max()}",
            "declare a `window` (black and white), such as -160,240, or a `bit_depth`, in its place",
        )
    return np.rint(found.applied(values) * (255 / (2**bits - 1))).astype(np.uint8)


def _signed(found: Table, values_below_0: bool) -> Table:
    """The table with a signed first mapped value, where what is looked up may be below 0: files of unsigned pixels, and
    writers that know no signed descriptor, store it without its sign."""
    return replace(found, first=found.first - 2**16) if values_below_0 and found.first >= 2**15 else found


def _of_palette(stored: np.ndarray, dataset: FileDataset, name: str) -> tuple[np.ndarray, int]:
    """Colours (H, W, 3) of a palette's places, and how many bits they have.

    Source: DICOM PS3.3, C.7.6.3.1.5 and C.7.6.3.1.6.
    """
    if "RedPaletteColorLookupTableData" in dataset:
        tables = [_table(dataset, dataset, f"{one}PaletteColorLookupTable{{}}", name) for one in _COLOURS]
        bits = max(one.bits_used for one in tables)
        return np.stack([one.applied(stored) for one in tables], axis=-1), 16 if bits > 16 - SPARE_BITS else bits
    count, _, bits = dataset.RedPaletteColorLookupTableDescriptor
    if bits == 8 and not 0 < count <= 256:
        raise UnreadableError(
            f"{name} has a segmented palette of {count or 2**16} entries of 8 bits", "save it as RGB, or take it out"
        )
    colours = _library(name).pixels.processing.apply_color_lut(stored, dataset)[..., :3]
    return colours, 8 * colours.itemsize


def _table(dataset: FileDataset, item: Dataset, called: str, name: str) -> Table:
    """The lookup table in an item of the file; `called` is how its tags are."""
    little = dataset.file_meta.TransferSyntaxUID.is_little_endian
    return table(item[called.format("Descriptor")].value, item[called.format("Data")].value, name, little_endian=little)


def _first(dataset: FileDataset, tag: str) -> float | None:
    """The first value of a tag that holds finite numbers; None where there is none."""
    from pydicom.multival import MultiValue

    value = dataset.get(tag)
    value = value[0] if isinstance(value, MultiValue) and value else value
    number = math.nan if value in (None, "") or isinstance(value, MultiValue) else float(value)
    return number if math.isfinite(number) else None
