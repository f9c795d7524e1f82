"""PNG files whose pixels end early: their compressed stream is whole in itself, and Pillow leaves the rest black."""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator

from PIL import Image

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
