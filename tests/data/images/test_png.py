"""PNG files whose compressed stream is whole, and holds fewer rows than the image has."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from sfumato._checks import SfumatoError
from sfumato.data import decoding
from sfumato.data.levels import Levels

PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))


def rows(side, bits, *, interlaced=False):
    passes = PASSES if interlaced else ((0, 0, 1, 1),)
    for left, top, across, down in passes:
        row = bytes([200] * (len(range(left, side, across)) * bits // 8))
        yield from [b"\0" + row] * len(range(top, side, down)) if row else []


def png(side, packed, *, bits=8, interlaced=False):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", side, side, bits, 0, 0, 0, interlaced)
    middle = len(packed) // 2  # in two chunks, as large files have many
    data = (chunk(b"IDAT", part) for part in (packed[:middle], packed[middle:]))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + b"".join(data) + chunk(b"IEND", b"")


@pytest.mark.parametrize("interlaced", [False, True])
@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("side", [7, 9])
def test_an_image_that_lacks_a_row_is_refused_and_not_black(side, bits, interlaced):
    levels = Levels(bit_depth=16) if bits == 16 else None
    whole = list(rows(side, bits, interlaced=interlaced))
    for count in range(1, len(whole) + 1):
        content = png(side, zlib.compress(b"".join(whole[:count])), bits=bits, interlaced=interlaced)
        if count == len(whole):
            assert (decoding.decode(content, "a.png", size=side, channels=1, levels=levels) == 200).all()
            continue
        for decode in (decoding.decode, lambda *one, size, **how: decoding.decode_whole(*one, sizes=[size], **how)):
            with pytest.raises(SfumatoError, match=r"image 'a\.png' is broken or truncated"):
                decode(content, "a.png", size=side, channels=1, levels=levels)


@pytest.mark.parametrize("mode", ["1", "LA", "P", "RGB"])
@pytest.mark.parametrize("size", [(1, 1), (13, 7)])
def test_black_images_are_black(mode, size):
    out = io.BytesIO()
    Image.new(mode, size).save(out, "PNG")
    found = decoding.decode(out.getvalue(), "a.png", size=min(size), channels=1)
    assert np.unique(found).tolist() == [255 if mode == "LA" else 0]
