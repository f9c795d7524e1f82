"""PNG files with long metadata: whole images, whatever is written about them."""

import io
import os

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from sfumato.data import decoding

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
    with pytest.raises(decoding.UnreadableError):
        decoding.decode(with_text(LONG)[:cut], "a.png", size=8, channels=1)
