"""Images of more than eight bits, as Pillow hands them over: greys as they are, colours cut to their upper eight bits.

What it reads wrongly (Pillow 13 does) is refused by the header: colours of 16 bits in planes of their own, or with a
transparent one; compressed signed values in big-endian order; greys of 16 bits whose 0 is white; signed bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image, ImageOps

from sfumato._checks import SfumatoError
from sfumato.data.images.levels import Levels, undeclared

_BYTE, _WIDE = 2**8 - 1, 2**16 - 1
_BITS, _COMPRESSION, _PHOTOMETRIC, _PLANES, _FORMAT = 258, 259, 262, 284, 339  # tags of TIFF
_SIGNED = 2


def is_grey(image: Image.Image) -> bool:
    """Whether it is grey with more than eight bits. Pillow gives some of 16 bits its mode of 32."""
    if image.mode == "I":
        return image.format in ("PNG", "PPM") or (image.format == "TIFF" and _tag(image, _BITS) == (16,))
    return image.mode.startswith("I;16")


def check(image: Image.Image, levels: Levels | None, name: str) -> None:
    """Refuse an image of more than eight bits that nothing was declared for, or that would be read wrongly.

    By its header alone: the refusal is the same whatever the pixels are.
    """
    if image.mode in ("I", "F") and not is_grey(image):
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
    if is_grey(image):
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


def in_eight_bits(image: Image.Image, levels: Levels, name: str) -> Image.Image:
    """A grey image of more than eight bits, turned upright, by the levels; a transparent value is white."""
    white, transparent, stretched = _white(image, name), image.info.get("transparency"), image.format == "PPM"
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
