"""Pixels of 16 bits, whose black and white levels are declared, and truncated PNG files.

No file states its black and white levels. A 12-bit X-ray in a 16-bit file uses a sixteenth of the range, and would look
black under a rule for the whole range. A rule that depends on the values would make brightness depend on the data.

Pillow keeps 16-bit grey values and truncates colours to their upper eight bits. Files that Pillow 13 reads wrongly are
refused by their headers: 16-bit colours in separate planes or with a transparent colour, compressed signed values in
big-endian order, 16-bit grey with 0 as white, and signed bytes.

A PNG whose pixels end early can have a valid compressed stream. Pillow leaves the missing rows black, so such files are
detected here.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from sfumato._checks import SfumatoError, positive_integer, within
from sfumato.data.paths import unreadable

_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
"""Values per pixel, by colour type (PNG specification, 11.2.2)."""

_PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
"""Interlaced images: first column and row of each pass, and the steps to the next ones (8.2)."""

_AT_ONCE = 1 << 20


def load(image: Image.Image, name: str) -> None:
    """Decodes an image, and refuses a PNG in memory with fewer rows than it declares.

    Counting rows decompresses the file again, so they are counted only if the last row is black or the image is
    interlaced.
    """
    file = getattr(image, "fp", None) if image.format == "PNG" else None
    image.load()
    if not isinstance(file, io.BytesIO):
        return
    content, (width, height) = file.getvalue(), image.size
    if content[28] or not any(image.crop((0, height - 1, width, height)).tobytes()):
        declared = sum(_bytes(content))
        if _unpacked(content, declared) < declared:
            raise unreadable(name)


def _bytes(content: bytes) -> Iterator[int]:
    """The declared number of bytes of each pass, including one filter byte per row."""
    width, height = (int.from_bytes(content[start : start + 4], "big") for start in (16, 20))
    bits = content[24] * _CHANNELS[content[25]]
    for left, top, across, down in _PASSES if content[28] else ((0, 0, 1, 1),):
        columns, rows = -(-(width - left) // across), -(-(height - top) // down)
        yield rows * (1 + (columns * bits + 7) // 8) if columns > 0 and rows > 0 else 0


def _unpacked(content: bytes, most: int) -> int:
    """Number of bytes in the compressed stream, counted up to `most`."""
    unpacker, place, count = zlib.decompressobj(), 8, 0
    while place + 8 <= len(content) and count < most:
        length, kind = int.from_bytes(content[place : place + 4], "big"), content[place + 4 : place + 8]
        compressed = content[place + 8 : place + 8 + length] if kind == b"IDAT" else b""
        while compressed and count < most:
            count += len(unpacker.decompress(compressed, _AT_ONCE))
            compressed = unpacker.unconsumed_tail
        place += length + 12
    return count


MOST_BITS = 16
LOWEST, HIGHEST = -(2**15), 2**16 - 1
"""Range of signed and unsigned 16-bit values."""


@dataclass(frozen=True, kw_only=True)
class Levels:
    """Maps 16-bit values to 0 (black) to 255 (white). Exactly one of the two arguments is given.

    **Guarantee.** The declaration is public, and each pixel's grey depends on the declaration and its value alone, so
    an image is a function of its own record (unit: one record; adjacency: any).

    Args:
        bit_depth: number of bits that the values use: 12 for 0 to 4095. Larger values are refused.
        window: values that become black and white; values beyond are clipped. This is the windowing of medical images:
            a centre of 40 and a width of 400 are (-160, 240).

    >>> Levels(bit_depth=12).apply(np.array([0, 2048, 4095]), "image").tolist()
    [0, 128, 255]
    >>> Levels(window=(-160, 240)).apply(np.array([-1000, -160, 40, 240, 3000]), "image").tolist()
    [0, 0, 128, 255, 255]
    """

    bit_depth: int | None = None
    window: Sequence[int] | None = None

    def __post_init__(self) -> None:
        if self.bit_depth is None and self.window is None:
            raise TypeError("bit_depth or window must be given")
        if self.bit_depth is not None and self.window is not None:
            raise SfumatoError(
                f"`bit_depth={self.bit_depth}` and `window={_listed(self.window)}` are both given",
                "give the one that fits the data",
            )
        if self.bit_depth is not None:
            remedy = "give the number of bits that the values use, such as 12 for 0 to 4095"
            positive_integer(bit_depth=self.bit_depth, remedy=remedy)
            within(None, MOST_BITS, bit_depth=self.bit_depth, remedy=remedy)
            return
        ends = list(self.window) if isinstance(self.window, (tuple, list)) else []
        if [type(end) for end in ends] != [int, int] or not LOWEST <= ends[0] < ends[1] <= HIGHEST:
            raise SfumatoError(
                f"window must be two integers from {LOWEST} to {HIGHEST}, the lower one first, got {self.window!r}",
                "give the values that become black and white, such as -160,240",
            )
        object.__setattr__(self, "window", tuple(ends))

    @classmethod
    def from_declared(cls, bit_depth: int | None, window: Sequence[int] | None) -> Levels | None:
        """The declared levels; None if nothing was declared."""
        return None if bit_depth is None and window is None else cls(bit_depth=bit_depth, window=window)

    @property
    def black_and_white(self) -> tuple[int, int]:
        """The values that become black and white."""
        if self.bit_depth is not None:
            return 0, 2**self.bit_depth - 1
        assert self.window is not None
        low, high = self.window
        return low, high

    def check(self, values: np.ndarray, name: str) -> None:
        """Refuses values beyond the declared bits; see `apply`."""
        if self.bit_depth is None:
            return
        low, high = self.black_and_white
        for value in (values.min(initial=low), values.max(initial=low)):
            if not low <= value <= high:
                raise SfumatoError(
                    f"{name} holds the value {value}, but {self.bit_depth} bits hold {low} to {high}",
                    "declare a larger `bit_depth`, or a `window`, which clips values",
                )

    def apply(self, values: np.ndarray, name: str) -> np.ndarray:
        """Greys uint8, in the shape of `values`, which are 16-bit integers of any type.

        Args:
            name: name of the image in errors.
        """
        self.check(values, name)
        low, high = self.black_and_white
        inside = np.clip(values.astype(np.float32), low, high) - low
        return np.rint(inside * 255 / (high - low)).astype(np.uint8)


def _listed(window: Sequence[int]) -> str:
    """The window as written on the command line."""
    return ",".join(map(str, window))


class UndeclaredError(SfumatoError):
    """Pixels of 16 bits without declared levels."""


def undeclared(name: str, has: str = "16-bit pixels") -> UndeclaredError:
    """The error for an image or array without declared levels, whatever its values are."""
    return UndeclaredError(
        f"{name} has {has}, but the values of black and white are not declared",
        "declare `bit_depth` (12 if 4095 is white) or `window` (black and white), or save 8 bits",
    )


_BYTE, _WIDE = 2**8 - 1, 2**16 - 1
_BITS, _COMPRESSION, _PHOTOMETRIC, _PLANES, _FORMAT = 258, 259, 262, 284, 339  # tags of TIFF
_SIGNED = 2


def is_deep_grey(image: Image.Image) -> bool:
    """Whether the image is grey with more than eight bits. Pillow opens some 16-bit images in its 32-bit mode."""
    if image.mode == "I":
        return image.format in ("PNG", "PPM") or (image.format == "TIFF" and _tag(image, _BITS) == (16,))
    return image.mode.startswith("I;16")


def check_depth(image: Image.Image, levels: Levels | None, name: str) -> None:
    """Refuses an image of more than eight bits without declared levels, or that Pillow would read wrongly.

    The check uses the header alone, so it does not depend on the pixels.
    """
    why, grey, signed = None, is_deep_grey(image), _SIGNED in _tag(image, _FORMAT)
    wide = image.mode in ("I", "F") and not grey
    white = _WIDE if wide else _white(image, name)
    if wide:
        why = "has 32-bit pixels, whose range no rule fixes"
    elif white <= _BYTE:
        why = "has signed 8-bit pixels" if signed else None
    elif levels is None:
        raise undeclared(name)
    elif grey:
        big_endian = getattr(getattr(image, "tag_v2", None), "prefix", None) == b"MM"
        if _tag(image, _PHOTOMETRIC) == (0,):
            why = "has 16-bit pixels in which 0 is white"
        elif signed and big_endian and _tag(image, _COMPRESSION) not in ((), (1,)):
            why = "has signed 16-bit pixels, compressed in big-endian order"
    elif levels.window is not None or levels.black_and_white[1] != white:
        why = f"has colours of up to {white}, of which only eight bits can be read"
    elif _tag(image, _PLANES) == (2,):
        why = "has 16-bit colours in separate planes"
    elif "transparency" in image.info:
        why = "has a 16-bit transparent colour"
    if why:
        raise SfumatoError(f"{name} {why}, which is not supported", "save it with 8 bits, or as a plain 16-bit grey")


def deep_grey_in_eight_bits(image: Image.Image, levels: Levels, name: str) -> Image.Image:
    """A grey image of more than eight bits, upright, mapped by the levels. A transparent value becomes white."""
    white, transparent, stretched = _white(image, name), image.info.get("transparency"), image.format == "PPM"
    load(image, name)
    values = np.asarray(ImageOps.exif_transpose(image))
    if stretched:  # Pillow has scaled the file's white to 65535
        values = np.rint(values * (white / _WIDE)).astype(np.int32)
    greys = levels.apply(values, name)
    if transparent is not None:
        greys[values == transparent] = _BYTE
    return Image.fromarray(greys)


def _white(image: Image.Image, name: str) -> int:
    """Largest value that a channel of the file can hold."""
    if image.mode.startswith("I;16"):
        return _WIDE
    if image.format == "TIFF":
        return _WIDE if max(_tag(image, _BITS), default=1) > 8 else _BYTE
    if image.format not in ("PNG", "PPM"):
        return _BYTE
    tiles = getattr(image, "tile", [])
    if not tiles and image.mode == "I":
        raise SfumatoError(
            f"{name} has already been loaded, so its value range is unknown", "give the path of its file"
        )
    arguments = tiles[0].args if tiles else ""
    if isinstance(arguments, tuple):
        return arguments[-1]
    return _WIDE if "16" in arguments else _BYTE


def _tag(image: Image.Image, number: int) -> tuple[Any, ...]:
    """The values of a TIFF tag; empty if absent."""
    value = getattr(image, "tag_v2", {}).get(number, ())
    return value if isinstance(value, tuple) else (value,)
