"""Pixels of 16 bits: which of their values are black and white is declared, since no file says so.

A 12-bit X-ray in a 16-bit file fills a sixteenth of its range, and would be black by a rule for the whole range. A rule
that looked at the values would let each image, or all of them together, decide how bright they are.

Pillow hands greys over as they are, and colours cut to their upper eight bits. What it reads wrongly (Pillow 13 does)
is refused by the header: colours of 16 bits in planes of their own, or with a transparent one; compressed signed values
in big-endian order; greys of 16 bits whose 0 is white; signed bytes.

And PNG files whose pixels end early: their compressed stream is whole in itself, and Pillow leaves the rest black.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from sfumato._checks import SfumatoError, positive_integer
from sfumato.data.paths import UnreadableError

_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
"""Numbers of a pixel, by colour type (PNG specification, 11.2.2)."""

_PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
"""Of interlaced images: the first column and row of each pass, and the steps to the next ones (8.2)."""

_AT_ONCE = 1 << 20


def load(image: Image.Image, name: str) -> None:
    """Decode an image; refused is a PNG in memory that holds fewer rows than it declares.

    Rows are counted only where the last one is black, or where they come in passes: it unpacks the file again.
    """
    file = getattr(image, "fp", None) if image.format == "PNG" else None
    image.load()
    if not isinstance(file, io.BytesIO):
        return
    content, (width, height) = file.getvalue(), image.size
    if content[28] or not any(image.crop((0, height - 1, width, height)).tobytes()):
        declared = sum(_bytes(content))
        if _unpacked(content, declared) < declared:
            raise UnreadableError(f"{name} is broken or cut short", "replace the file, or take it out")


def _bytes(content: bytes) -> Iterator[int]:
    """The bytes of each pass that the header declares, a byte before each row among them."""
    width, height = (int.from_bytes(content[start : start + 4], "big") for start in (16, 20))
    bits = content[24] * _CHANNELS[content[25]]
    for left, top, across, down in _PASSES if content[28] else ((0, 0, 1, 1),):
        columns, rows = -(-(width - left) // across), -(-(height - top) // down)
        yield rows * (1 + (columns * bits + 7) // 8) if columns > 0 and rows > 0 else 0


def _unpacked(content: bytes, most: int) -> int:
    """How many bytes the compressed stream holds, counted no farther than `most`."""
    unpacker, place, found = zlib.decompressobj(), 8, 0
    while place + 8 <= len(content) and found < most:
        length, kind = int.from_bytes(content[place : place + 4], "big"), content[place + 4 : place + 8]
        given = content[place + 8 : place + 8 + length] if kind == b"IDAT" else b""
        while given and found < most:
            found += len(unpacker.decompress(given, _AT_ONCE))
            given = unpacker.unconsumed_tail
        place += length + 12
    return found


MOST_BITS = 16
LOWEST, HIGHEST = -(2**15), 2**16 - 1
"""What 16 bits can hold, with a sign and without."""


@dataclass(frozen=True, kw_only=True)
class Levels:
    """How values of 16 bits become 0 (black) to 255 (white); one of the two is given.

    **Guarantee.** The declaration is public, and each pixel is brought to its grey by it alone, so an image is a
    function of its own record (unit: one record; adjacency: any).

    Args:
        bit_depth: how many bits the values use: 12 for 0 to 4095. Values beyond are refused.
        window: what becomes black and what white; values beyond are cut off. The windowing of medical images: a centre
            of 40 and a width of 400 are (-160, 240).

    >>> Levels(bit_depth=12).applied(np.array([0, 2048, 4095]), "image").tolist()
    [0, 128, 255]
    >>> Levels(window=(-160, 240)).applied(np.array([-1000, -160, 40, 240, 3000]), "image").tolist()
    [0, 0, 128, 255, 255]
    """

    bit_depth: int | None = None
    window: Sequence[int] | None = None

    def __post_init__(self) -> None:
        if self.bit_depth is None and self.window is None:
            raise TypeError("one of bit_depth and window is needed")
        if self.bit_depth is not None and self.window is not None:
            raise SfumatoError(
                f"`bit_depth={self.bit_depth}` and `window={_listed(self.window)}` are both given",
                "give the one that fits the data",
            )
        if self.bit_depth is not None:
            remedy = "give how many bits the values use, such as 12 for 0 to 4095"
            if positive_integer("bit_depth", self.bit_depth, remedy=remedy) > MOST_BITS:
                raise SfumatoError(f"bit_depth must be at most {MOST_BITS}, got {self.bit_depth}", remedy)
            return
        remedy = "give what is to become black and what white, such as -160,240"
        if not isinstance(self.window, (tuple, list)) or [type(end) for end in self.window] != [int, int]:
            raise SfumatoError(f"window must be two whole numbers, got {self.window!r}", remedy)
        low, high = self.window
        if not LOWEST <= low < high <= HIGHEST:
            raise SfumatoError(
                f"window must be a number of at least {LOWEST} and then a larger one of at most {HIGHEST}, got "
                f"{low},{high}",
                remedy,
            )
        object.__setattr__(self, "window", (low, high))

    @classmethod
    def declared(cls, bit_depth: int | None, window: Sequence[int] | None) -> Levels | None:
        """What was declared; None where nothing was."""
        return None if bit_depth is None and window is None else cls(bit_depth=bit_depth, window=window)

    @property
    def ends(self) -> tuple[int, int]:
        """The values that become black and white."""
        if self.bit_depth is not None:
            return 0, 2**self.bit_depth - 1
        assert self.window is not None
        low, high = self.window
        return low, high

    def check(self, values: np.ndarray, name: str) -> None:
        """Refuse values that the declared bits cannot hold; see `applied`."""
        if self.bit_depth is None:
            return
        low, high = self.ends
        for value in (values.min(initial=low), values.max(initial=low)):
            if not low <= value <= high:
                raise SfumatoError(
                    f"{name} holds the value {value}, and {self.bit_depth} bits hold {low} to {high}",
                    "declare as large a `bit_depth` as the data need, or a `window`, which cuts them off",
                )

    def applied(self, values: np.ndarray, name: str) -> np.ndarray:
        """Greys uint8, in the shape of `values`, which are integers of 16 bits in any type.

        Args:
            name: what to call the image in a refusal.
        """
        self.check(values, name)
        low, high = self.ends
        inside = np.clip(values.astype(np.float32), low, high) - low
        return np.rint(inside * 255 / (high - low)).astype(np.uint8)


def _listed(window: Sequence[int]) -> str:
    """As it is written on the command line."""
    return ",".join(map(str, window))


class UndeclaredError(SfumatoError):
    """Pixels of 16 bits without a declaration."""


def undeclared(name: str) -> UndeclaredError:
    """The refusal of an image or an array that has 16 bits without a declaration, whatever its values are."""
    return UndeclaredError(
        f"{name} has pixels of 16 bits, and which of their values are black and white was not declared",
        "declare `bit_depth` (12 if 4095 is white) or `window` (black and white), or save 8 bits",
    )


_BYTE, _WIDE = 2**8 - 1, 2**16 - 1
_BITS, _COMPRESSION, _PHOTOMETRIC, _PLANES, _FORMAT = 258, 259, 262, 284, 339  # tags of TIFF
_SIGNED = 2


def is_deep_grey(image: Image.Image) -> bool:
    """Whether it is grey with more than eight bits. Pillow gives some of 16 bits its mode of 32."""
    if image.mode == "I":
        return image.format in ("PNG", "PPM") or (image.format == "TIFF" and _tag(image, _BITS) == (16,))
    return image.mode.startswith("I;16")


def check_depth(image: Image.Image, levels: Levels | None, name: str) -> None:
    """Refuse an image of more than eight bits that nothing was declared for, or that would be read wrongly.

    By its header alone: the refusal is the same whatever the pixels are.
    """
    if image.mode in ("I", "F") and not is_deep_grey(image):
        raise SfumatoError(f"{name} has 32-bit pixels, whose range no rule fixes", "save it with 8 or 16 bits")
    white = _white(image, name)
    signed = _SIGNED in _tag(image, _FORMAT)
    if white <= _BYTE:
        if signed:
            raise SfumatoError(f"{name} has signed pixels of 8 bits", "save it with values from 0 to 255")
        return
    if levels is None:
        raise undeclared(name)
    odd = None
    if is_deep_grey(image):
        big_endian = getattr(getattr(image, "tag_v2", None), "prefix", None) == b"MM"
        if _tag(image, _PHOTOMETRIC) == (0,):
            odd = "has pixels of 16 bits of which 0 is white"
        elif signed and big_endian and _tag(image, _COMPRESSION) not in ((), (1,)):
            odd = "has signed pixels of 16 bits, compressed in big-endian order"
    elif levels.window is not None or levels.ends[1] != white:
        odd = f"has colours of up to {white}, of which no more than eight bits can be read"
    elif _tag(image, _PLANES) == (2,):
        odd = "has colours of 16 bits in planes of their own"
    elif "transparency" in image.info:
        odd = "has a transparent colour of 16 bits"
    if odd:
        raise SfumatoError(f"{name} {odd}, which is not supported", "save it with 8 bits, or as a plain 16-bit grey")


def deep_grey_in_eight_bits(image: Image.Image, levels: Levels, name: str) -> Image.Image:
    """A grey image of more than eight bits, turned upright, by the levels; a transparent value is white."""
    white, transparent, stretched = _white(image, name), image.info.get("transparency"), image.format == "PPM"
    load(image, name)
    values = np.asarray(ImageOps.exif_transpose(image))
    if stretched:  # Pillow has brought the file's own white to 65535
        values = np.rint(values * (white / _WIDE)).astype(np.int32)
    greys = levels.applied(values, name)
    if transparent is not None:
        greys[values == transparent] = _BYTE
    return Image.fromarray(greys)


def _white(image: Image.Image, name: str) -> int:
    """The largest value that the file could hold in a channel."""
    if image.mode.startswith("I;16"):
        return _WIDE
    if image.format == "TIFF":
        return _WIDE if max(_tag(image, _BITS), default=1) > 8 else _BYTE
    if image.format not in ("PNG", "PPM"):
        return _BYTE
    tiles = getattr(image, "tile", [])
    if not tiles and image.mode == "I":
        raise SfumatoError(f"{name} has been loaded, after which its range is not known", "give the path of its file")
    arguments = tiles[0].args if tiles else ""
    if isinstance(arguments, tuple):
        return arguments[-1]
    return _WIDE if "16" in arguments else _BYTE


def _tag(image: Image.Image, number: int) -> tuple[Any, ...]:
    """The values of a tag of a TIFF file; empty where there is none."""
    value = getattr(image, "tag_v2", {}).get(number, ())
    return value if isinstance(value, tuple) else (value,)
