"""The same image makes the same input, in whatever form it is given; what is no image is refused by name."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image, ImageOps

from sfumato._checks import SfumatoError
from sfumato.data import Transform
from sfumato.data.transforms import is_one, pixels_of

LAYOUTS = {"L": (), "LA": (2,), "RGB": (3,), "RGBA": (4,)}


@st.composite
def pictures(draw) -> Image.Image:
    """An image of Pillow with any pixels: grey or in colour, transparent or not."""
    mode = draw(st.sampled_from(sorted(LAYOUTS)))
    side = st.integers(1, 24)
    shape = (draw(side), draw(side), *LAYOUTS[mode])
    return Image.fromarray(draw(arrays.arrays(np.uint8, shape)))


def forms(image: Image.Image, folder: Path, **saved) -> dict[str, object]:
    """One image in every form that it may be given in; a file keeps its pixels."""
    path = folder / "image.png"
    image.save(path, **saved)
    return {
        "path": path,
        "str": str(path),
        "bytes": path.read_bytes(),
        "bytearray": bytearray(path.read_bytes()),
        "memoryview": memoryview(path.read_bytes()),
        "open file": io.BytesIO(path.read_bytes()),
        "opened by Pillow": Image.open(io.BytesIO(path.read_bytes())),
        "array": np.asarray(ImageOps.exif_transpose(Image.open(path))),
    }


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(image=pictures(), size=st.integers(4, 12), channels=st.sampled_from([1, 3]), turn=st.integers(1, 8))
def test_every_form_makes_the_same_input(image, size, channels, turn, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = turn
    transform = Transform(size=size, channels=channels)
    shown = forms(image, tmp_path, exif=exif)
    expected = transform.read(shown["path"])
    assert expected.shape == (channels, size, size)
    for name, form in shown.items():
        assert torch.equal(transform.read(form), expected), name
    loaded = ImageOps.exif_transpose(image)
    assert torch.equal(transform.read(image if turn == 1 else expected_of(loaded, exif)), expected)


def expected_of(image: Image.Image, exif: Image.Exif) -> Image.Image:
    """The image with that orientation, as Pillow has it after the file was opened and unpacked."""
    stream = io.BytesIO()
    image.save(stream, "PNG", exif=exif)
    opened = Image.open(stream)
    opened.load()
    return opened


@pytest.mark.parametrize("side", [30, 64, 400])
def test_a_jpeg_that_pillow_opened_is_unpacked_as_its_file_is(side, tmp_path):
    noise = np.random.default_rng(0).integers(256, size=(side, side + 7, 3), dtype=np.uint8)
    path = tmp_path / "a.jpg"
    Image.fromarray(noise).save(path, quality=95)
    transform = Transform(size=16, channels=3)
    expected = transform.read(path)
    with Image.open(path) as opened:
        assert torch.equal(transform.read(opened), expected)
        assert opened.size == (side + 7, side), "it is the caller's, and stays whole"
        array = np.asarray(opened)
        assert torch.equal(transform.read(opened), transform.read(array)), "unpacked whole, both of them"
    if side < 4 * 16:
        assert torch.equal(transform.read(array), expected)
    closed = Image.open(path)
    closed.close()
    with pytest.raises(SfumatoError, match=r"image .*a.jpg' was closed before it was read; give its path"):
        transform.read(closed)


@pytest.mark.parametrize("window", [None, (100, 9000)])
def test_sixteen_bits_are_read_by_what_was_declared_in_every_form(window, tmp_path):
    levels = {"bit_depth": 14} if window is None else {"window": window}
    values = np.random.default_rng(1).integers(2**14, size=(9, 11), dtype=np.uint16)
    transform = Transform(size=6, channels=1, **levels)
    expected = transform.read(values)
    for name, form in (forms(Image.fromarray(values), tmp_path) | {"other order": values.astype(">u2")}).items():
        assert torch.equal(transform.read(form), expected), name
    with pytest.raises(SfumatoError, match="image is an array of uint16; give uint8"):
        Transform(size=6, channels=1).read(values)
    with pytest.raises(SfumatoError, match="image is an array of uint16; give uint8"):
        transform.read(np.zeros((6, 6, 4), np.uint16))


def test_transparent_parts_of_an_array_are_white_as_in_a_file():
    clear = np.zeros((8, 8, 4), np.uint8)
    assert pixels_of(clear, size=8, channels=3, levels=None).min() == 255
    assert pixels_of(clear[..., :2], size=8, channels=1, levels=None).min() == 255


def test_a_transform_takes_one_or_several_in_any_form(tmp_path):
    image = Image.fromarray(np.random.default_rng(2).integers(256, size=(10, 14, 3), dtype=np.uint8))
    transform = Transform(size=8, channels=3)
    expected = transform.read(image)[None]
    for name, form in forms(image, tmp_path).items():
        assert torch.equal(transform(form), expected), name
    several = list(forms(image, tmp_path).values())
    assert torch.equal(transform(several), expected.expand(len(several), -1, -1, -1))
    assert torch.equal(transform(np.stack([np.asarray(image)] * 2)), expected.expand(2, -1, -1, -1))
    assert torch.equal(transform(iter([image])), expected)
    assert transform([]).shape == (0, 3, 8, 8)
    assert Transform(size=8, channels=1, enlarged=16, resolution=12)([]).shape == (0, 1, 12, 12)


def test_real_numbers_from_0_to_1_are_the_pixels_that_an_archive_of_them_has():
    transform = Transform(size=8, channels=1)
    bright = np.arange(64, dtype=np.uint8).reshape(8, 8) * 4
    assert torch.equal(transform(bright / np.float32(255)), transform(bright))
    with pytest.raises(SfumatoError, match=r"array of float64; give uint8 from 0 \(black\) to 255 \(white\), or real"):
        transform(bright / 128)


def test_one_and_several_are_told_apart():
    assert all(map(is_one, ["a.png", Path("a.png"), b"", np.zeros((8, 8)), np.zeros((3, 8, 8)), np.array(0), 3, None]))
    assert not any(is_one(np.zeros(shape), channels=1) for shape in ((3, 8, 8), (200, 8, 8), (1, 8, 8)))
    assert not any(is_one(np.zeros(shape), channels=3) for shape in ((200, 8, 8), (1, 8, 8)))
    assert not any(map(is_one, [[], ("a.png",), np.zeros((2, 8, 8, 1)), np.array(["a.png"])]))


def test_a_refusal_says_which_of_several_it_is_about(tmp_path):
    transform, fine = Transform(size=8, channels=1), np.zeros((8, 8), np.uint8)
    with pytest.raises(SfumatoError, match="input 2: image is an array of float64; give uint8"):
        transform([fine, fine, fine - 0.5])
    with pytest.raises(SfumatoError, match=r"^image '.*b.png' does not exist; correct the path"):
        transform([fine, tmp_path / "b.png"])
    with pytest.raises(SfumatoError, match=r"input 1: image is a list; give a path"):
        transform([fine, [fine]])
    with (
        (tmp_path / "c.png").open("w+") as text,
        pytest.raises(SfumatoError, match="image is a TextIOWrapper; give a path"),
    ):
        transform(text)
    cut = Image.open(io.BytesIO(forms(Image.new("L", (64, 64), 7), tmp_path)["bytes"][:60]))
    with pytest.raises(SfumatoError, match="is broken or truncated; replace the file"):
        transform(cut)
