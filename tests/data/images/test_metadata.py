"""PNG files with more metadata than Pillow reads: whole images, whatever is written about them."""

from __future__ import annotations

import io
import os
import zlib

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from sfumato.data.images import decoding, png
from sfumato.data.images.png import without_excess

RAMP = np.arange(64, dtype=np.uint8).reshape(8, 8)
LONG = "x" * (2 << 20)


def written(*, after=False, **options) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(RAMP).save(stream, "PNG", **options)
    content = stream.getvalue()
    if not after:
        return content
    data = b"note\0\0" + zlib.compress(LONG.encode())
    chunk = len(data).to_bytes(4, "big") + b"zTXt" + data + zlib.crc32(b"zTXt" + data).to_bytes(4, "big")
    return content[:-12] + chunk + content[-12:]


def with_text(*texts: str, kind: str = "zTXt", key: str = "note") -> bytes:
    info = PngImagePlugin.PngInfo()
    for text in texts:
        add = {"iTXt": info.add_itxt, "zTXt": info.add_text, "tEXt": info.add_text}[kind]
        add(key, text, zip=kind != "tEXt")
    return written(pnginfo=info)


BROKEN_FOR_PILLOW = {
    "zTXt": lambda: with_text(LONG),
    "iTXt": lambda: with_text(LONG, kind="iTXt"),
    "iTXt of several bytes a character": lambda: with_text("ü" * (1 << 20), kind="iTXt"),
    "a colour profile": lambda: written(icc_profile=os.urandom(2 << 20)),
    "many": lambda: with_text(*["x" * (1 << 20)] * 70),
    "tEXt": lambda: with_text("x" * (65 << 20), kind="tEXt"),
    "after the pixels": lambda: written(after=True),
}


@pytest.mark.parametrize("which", BROKEN_FOR_PILLOW)
def test_a_whole_image_is_read_however_long_its_metadata_are(which):
    content = BROKEN_FOR_PILLOW[which]()
    with pytest.raises(ValueError, match=r"MAX_TEXT|too large"), Image.open(io.BytesIO(content)) as image:
        image.load()
    assert np.array_equal(decoding.decode(content, "a.png", size=8, channels=1)[..., 0], RAMP)
    assert decoding.header(content, "a.png").grey
    assert len(without_excess(content)) < png.ROOM + (1 << 20)


def test_other_files_stay_as_they_are():
    for content in (
        b"",
        b"\x89PNG\r\n\x1a\n",
        written(),
        with_text("short"),
        with_text("short", kind="iTXt"),
        b"GIF89a",
    ):
        assert without_excess(content) is content
    cut = with_text(LONG)[:60]
    assert without_excess(cut) is cut


@pytest.mark.parametrize("kind", ["iTXt", "tEXt"])
def test_an_orientation_at_the_beginning_of_a_long_text_is_obeyed(kind):
    if kind == "iTXt":
        text, key = f'<x:xmpmeta tiff:Orientation="6"/>\n{LONG}', "XML:com.adobe.xmp"
    else:
        exif = Image.Exif()
        exif[0x0112] = 6
        code = (b"Exif\0\0" + exif.tobytes().removeprefix(b"Exif\0\0")).hex()
        text, key = (
            f"\nexif\n{len(code) // 2}\n{code}\n" + "00" * 36 + ("\n" + "00" * 36) * 20_000,
            "Raw profile type exif",
        )
    content = with_text(text, kind=kind, key=key)
    assert len(without_excess(content)) < max(len(content), 1 << 20)
    assert np.array_equal(decoding.decode(content, "a.png", size=8, channels=1)[..., 0], np.rot90(RAMP, -1))


@pytest.mark.parametrize("cut", [40, 70, 200])
def test_a_broken_image_stays_broken(cut):
    with pytest.raises(decoding.UnreadableError):
        decoding.decode(with_text(LONG)[:cut], "a.png", size=8, channels=1)
