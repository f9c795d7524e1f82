"""PNG files that Pillow reads wrongly: those whose pixels end early, and those whose compressed metadata are large.

The stream of the former is whole in itself, and Pillow leaves the rest black. Of the latter Pillow refuses the whole
image, so they are cut short before. Text and colour profiles play no part in the pixels that are read. Only an
orientation may lie in a text (XMP, or EXIF as ImageMagick writes it), near its beginning.
"""

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


SIGNATURE = b"\x89PNG\r\n\x1a\n"
LONGEST = 1 << 19
"""Bytes of each text that are kept; Pillow takes 2^20."""
ROOM = 1 << 24
"""Bytes of all texts of a file that are kept; Pillow takes 2^26."""
_EXPANDED = 1032
"""How many times its own length a compressed chunk may have, at most (zlib)."""
_TEXTS = (b"tEXt", b"zTXt", b"iTXt")
_PROFILE = b"iCCP"


def without_excess(content: bytes) -> bytes:
    """The same file with long texts cut short, and without a long colour profile; other bytes as they are.

    What is no PNG, or has a chunk that ends beyond the file, comes back as it is.
    """
    if not content.startswith(SIGNATURE):
        return content
    pieces, kept, room = [], 0, ROOM
    for start, end, kind in _chunks(content):
        if kind not in _TEXTS and kind != _PROFILE:
            continue
        data = content[start + 8 : end - 4]
        shorter = _shortened(kind, data, min(LONGEST, room))
        if kind in _TEXTS:
            room -= len(data) if shorter is None else len(shorter[1])
        if shorter is not None:
            pieces += [content[kept:start], _chunk(*shorter) if shorter[1] else b""]
            kept = end
    return b"".join([*pieces, content[kept:]]) if pieces else content


def _chunks(content: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Where each chunk starts and ends, and its kind."""
    start = len(SIGNATURE)
    while start + 12 <= len(content):
        end = start + 12 + int.from_bytes(content[start : start + 4], "big")
        if end > len(content):
            return
        yield start, end, content[start + 4 : start + 8]
        start = end


def _chunk(kind: bytes, data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")


def _shortened(kind: bytes, data: bytes, most: int) -> tuple[bytes, bytes] | None:
    """Kind and data of the chunk that stands in its place, empty for none; None where it may stay."""
    key, _, rest = data.partition(b"\0")
    if kind == b"tEXt":
        return (kind, _of_text(key + b"\0", rest, most)) if len(data) > most else None
    if kind == b"iTXt":
        flags, (language, _, further) = rest[:2], rest[2:].partition(b"\0")
        translated, _, rest = further.partition(b"\0")
        before = key + b"\0\0\0" + language + b"\0" + translated + b"\0"
        if flags[:1] == b"\0":
            return (kind, _of_text(before, rest, most, "utf-8")) if len(data) > most else None
        compressed, encoding = rest, "utf-8"
    else:
        before, compressed, encoding = key + b"\0", rest[1:], "latin-1"
    if len(compressed) * _EXPANDED <= most:
        return None
    try:
        text = zlib.decompressobj().decompress(compressed, most + 1)
    except zlib.error:  # which Pillow passes over
        return None
    if len(text) <= most:
        return None
    if kind == _PROFILE:
        return kind, b""
    return (b"tEXt" if kind == b"zTXt" else kind), _of_text(before, text, most, encoding)


def _of_text(before: bytes, text: bytes, most: int, encoding: str = "latin-1") -> bytes:
    """What stands before a text, and its beginning up to the end of a line, where there is one; empty for none."""
    text = text[: most - len(before)] if len(before) < most else b""
    line = text.rfind(b"\n")
    text = text[: line + 1] if line > 0 else text
    return before + text.decode(encoding, "ignore").encode(encoding) if text else b""
