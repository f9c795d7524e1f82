"""What is declared of pixels of 16 bits.

PNG files whose compressed stream is whole, and holds fewer rows than the image has.

PNG files with long metadata: whole images, whatever is written about them.
"""

import io
import os
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, PngImagePlugin

from sfumato._checks import SfumatoError
from sfumato.data import decoding
from sfumato.data.levels import HIGHEST, LOWEST, Levels, undeclared
from sfumato.data.paths import UnreadableError


@pytest.mark.parametrize("bits", [1, 8, 12, 16])
def test_all_bits_reach_from_black_to_white(bits):
    values = np.arange(2**bits)
    greys = Levels(bit_depth=bits).apply(values, "image")
    assert greys.dtype == np.uint8
    assert np.abs(greys - values * 255 / (2**bits - 1)).max() <= 0.5
    for beyond in (-1, 2**bits):
        with pytest.raises(SfumatoError, match=f"^image holds the value {beyond}, but {bits} bits hold 0 to "):
            Levels(bit_depth=bits).apply(np.array([0, beyond]), "image")


@settings(max_examples=25)
@given(st.integers(LOWEST, HIGHEST - 1), st.data())
def test_a_window_is_linear_inside_and_flat_outside(low, data):
    high = data.draw(st.integers(low + 1, HIGHEST))
    values = np.arange(LOWEST, HIGHEST + 1)
    greys = Levels(window=(low, high)).apply(values, "image")
    assert set(greys[values <= low]) == {0}
    assert set(greys[values >= high]) == {255}
    inside = (values >= low) & (values <= high)
    assert np.abs(greys[inside] - (values[inside] - low) * 255 / (high - low)).max() <= 0.5001


@pytest.mark.parametrize("form", ["<u2", ">i2"])
def test_a_window_does_not_depend_on_how_the_values_are_stored(form):
    values = np.array([0, 100, 30_000]).astype(form)
    assert Levels(window=(0, 200)).apply(values, "image").tolist() == [0, 128, 255]


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"bit_depth": 12, "window": (0, 1)}, "bit_depth=12 and window=0,1 are both given"),
        ({"bit_depth": 0}, "bit_depth must be at least 1, got 0; give the number of bits that the values use"),
        ({"bit_depth": 17}, "bit_depth must be at most 16, got 17"),
        ({"window": (1, 1)}, "window must be two integers from -32768 to 65535, the lower one first"),
        ({"window": (-40_000, 0)}, r"window must be two integers .* got \(-40000, 0\)"),
        ({"window": "0,1"}, "got '0,1'"),
        ({"window": (0.5, 2)}, r"got \(0.5, 2\)"),
    ],
)
def test_what_cannot_be_meant_is_refused(declared, message):
    with pytest.raises(SfumatoError, match=message):
        Levels(**declared)


def test_the_refusal_without_a_declaration_names_both_options():
    assert "`bit_depth`" in undeclared("image").remedy
    assert "`window`" in undeclared("image").remedy
    assert Levels.from_declared(None, None) is None


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


RAMP = np.arange(64, dtype=np.uint8).reshape(8, 8)
LONG = "x" * (2 << 20)


def written(**options) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(RAMP).save(stream, "PNG", **options)
    return stream.getvalue()


def with_text(text: str) -> bytes:
    info = PngImagePlugin.PngInfo()
    info.add_text("note", text, zip=True)
    return written(pnginfo=info)


@pytest.mark.parametrize(
    "content", [with_text(LONG), written(icc_profile=os.urandom(2 << 20))], ids=["text", "profile"]
)
def test_a_whole_image_is_read_however_long_its_metadata_are(content):
    assert np.array_equal(decoding.decode(content, "a.png", size=8, channels=1)[..., 0], RAMP)
    assert decoding.header(content, "a.png").grey


@pytest.mark.parametrize("cut", [40, 70, 200])
def test_a_broken_image_stays_broken(cut):
    with pytest.raises(UnreadableError):
        decoding.decode(with_text(LONG)[:cut], "a.png", size=8, channels=1)
