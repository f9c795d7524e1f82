"""One rule from any image file to uint8 pixels."""

import io
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageCms

from sfumato._checks import SfumatoError
from sfumato.data import decoding
from sfumato.data.levels import Levels
from sfumato.data.paths import UnreadableError
from sfumato.data.readers.python_data import encode_image

NAME = Path("some.png")


def encoded(image, form="PNG", **options):
    stream = io.BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()


def decoded(image, form="PNG", size=8, channels=3, **options):
    return decoding.decode(encoded(image, form, **options), NAME, size=size, channels=channels)


def grey(values):
    return Image.fromarray(np.asarray(values))


RAMP = np.arange(64, dtype=np.uint8).reshape(8, 8)


@pytest.mark.parametrize("form", ["PNG", "BMP", "GIF", "WEBP"])
def test_lossless_formats_keep_every_pixel(form):
    options = {"lossless": True} if form == "WEBP" else {}
    assert np.array_equal(decoded(grey(RAMP), form, channels=1, **options)[..., 0], RAMP)


def test_transparent_parts_become_white():
    for mode, colour in (("RGBA", (0, 0, 0, 0)), ("LA", (0, 0))):
        assert decoded(Image.new(mode, (8, 8), colour)).min() == 255
    half = decoded(Image.new("RGBA", (8, 8), (255, 0, 0, 128)))
    assert np.array_equal(half[0, 0], [255, 127, 127])
    indexed = Image.new("P", (8, 8), 1)
    indexed.putpalette([0, 0, 0, 200, 0, 0])
    assert np.array_equal(decoded(indexed)[0, 0], [200, 0, 0])
    assert decoded(indexed, transparency=1).min() == 255


def test_exif_orientation_is_obeyed():
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned a quarter clockwise
    assert np.array_equal(decoded(grey(RAMP), "PNG", channels=1, exif=exif)[..., 0], np.rot90(RAMP, -1))


def test_the_centre_square_is_kept_and_brought_to_size():
    wide = np.concatenate([0 * RAMP, RAMP, 0 * RAMP], axis=1)
    for image, expected in ((wide, RAMP), (wide.T.copy(), RAMP.T)):
        assert np.array_equal(decoded(grey(image), channels=1)[..., 0], expected)
    bars = np.repeat([0, 200, 0], 20).astype(np.uint8)[None].repeat(20, 0)
    for image in (bars, bars.T.copy()):
        assert (decoded(grey(image), channels=1)[1:-1, 1:-1] == 200).all()
    assert decoded(grey(RAMP), channels=1, size=20).shape == (20, 20, 1)


def test_large_jpegs_are_unpacked_at_a_fraction_with_the_same_image():
    smooth = np.add.outer(np.arange(640), np.arange(640)) / 1278 * 255
    exact = decoded(grey(smooth.astype(np.uint8)), "PNG", size=16, channels=1).astype(int)
    drafted = decoded(grey(smooth.astype(np.uint8)), "JPEG", size=16, channels=1, quality=95).astype(int)
    assert np.abs(exact - drafted).max() <= 3


def test_headers_tell_grey_and_the_shorter_side():
    assert decoding.header(encoded(grey(RAMP)), NAME) == decoding.Header(shorter_side=8, longer_side=8, grey=True)
    colour = decoding.header(encoded(Image.new("RGB", (20, 30))), NAME)
    assert colour == decoding.Header(shorter_side=20, longer_side=30, grey=False)


def test_arrays_follow_the_rule_of_files():
    generator = np.random.default_rng(0)
    for channels in (1, 3):
        batch = generator.integers(256, size=(3, 12, 20, channels), dtype=np.uint8)
        for wanted in (1, 3):
            done = decoding.prepare_array(batch, size=9, channels=wanted)
            for image, result in zip(batch, done, strict=True):
                source = Image.fromarray(image[..., 0] if channels == 1 else image)
                assert np.array_equal(decoded(source, size=9, channels=wanted), result)
    assert decoding.prepare_array(batch[:, :, :12], size=12, channels=3).base is batch  # nothing to do, nothing copied


def test_an_image_that_claims_too_many_pixels_is_refused(monkeypatch):
    data = encoded(grey(RAMP))
    monkeypatch.setattr("sfumato.data.paths.LARGEST_IMAGE", 63)
    for read in (decoding.header, lambda *given: decoding.decode(*given, size=8, channels=1)):
        with pytest.raises(SfumatoError, match="would unpack to more than 63 pixels; make it smaller"):
            read(data, NAME)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 40)
    with decoding.quiet_decoder(), pytest.raises(SfumatoError, match="would unpack"):
        decoding.header(data, NAME)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 4)
    with pytest.raises(SfumatoError, match="would unpack"):
        decoding.header(data, NAME)


def test_a_large_jpeg_is_limited_by_what_is_decoded_of_it(monkeypatch):
    image = Image.fromarray(np.repeat(np.repeat(RAMP, 16, 0), 16, 1))
    data = encoded(image, "JPEG", quality=95)
    expected = decoding.decode(data, NAME, size=8, channels=1)
    monkeypatch.setattr("sfumato.data.paths.LARGEST_IMAGE", 16**2)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 4)
    monkeypatch.setattr(decoding, "LARGEST_WHOLE", 64)
    assert decoding.header(data, NAME).longer_side == 128
    assert np.array_equal(decoding.decode(data, NAME, size=8, channels=1), expected)
    (found,), whole = decoding.decode_whole(data, NAME, sizes=(8,), channels=1)
    assert np.array_equal(found, expected)
    assert whole is None
    with pytest.raises(SfumatoError, match="would unpack to more than 256 pixels"):
        decoding.decode(data, NAME, size=16, channels=1)
    monkeypatch.setattr(decoding, "LARGEST_JPEG", 128**2 - 1)
    for read in (decoding.header, lambda *given: decoding.decode(*given, size=8, channels=1)):
        with pytest.raises(SfumatoError, match="would unpack to more than 16,383 pixels"):
            read(data, NAME)


ADOBE_RGB = ((0.60974, 0.31111, 0.01947), (0.20528, 0.62567, 0.06087), (0.14919, 0.06322, 0.74457))
"""The primaries of Adobe RGB (1998) in XYZ, at the white of profiles."""


def profile(gamma, primaries=(), name="of a test"):
    """A colour profile by ICC.1:2001-04: an exponent, and three primaries or none for greys."""

    def fixed(*numbers):
        return b"".join(struct.pack(">i", round(number * 2**16)) for number in numbers)

    white, curve = (0.9642, 1.0, 0.8249), b"curv\0\0\0\0" + struct.pack(">IH", 1, round(gamma * 256))
    written = name.encode() + b"\0"
    tags = {b"desc": b"desc\0\0\0\0" + struct.pack(">I", len(written)) + written + bytes(78)}
    tags |= {b"wtpt": b"XYZ \0\0\0\0" + fixed(*white), b"cprt": b"text\0\0\0\0none\0"}
    for letter, primary in zip("rgb", primaries, strict=bool(primaries)):
        tags |= {f"{letter}XYZ".encode(): b"XYZ \0\0\0\0" + fixed(*primary), f"{letter}TRC".encode(): curve}
    tags |= {} if primaries else {b"kTRC": curve}
    table, place, data = struct.pack(">I", len(tags)), 132 + 12 * len(tags), b""
    for tag, value in tags.items():
        table += tag + struct.pack(">II", place + len(data), len(value))
        data += value + bytes(-len(value) % 4)
    kind = b"RGB " if primaries else b"GRAY"
    head = struct.pack(">I4xI4s4s4s12x4s28x", place + len(data), 0x02100000, b"mntr", kind, b"XYZ ", b"acsp")
    return (head + fixed(*white)).ljust(128, b"\0") + table + data


def srgb_of(values):
    """The values uint8 (..., 3) of Adobe RGB in sRGB, by its formulas (IEC 61966-2-1)."""
    to_xyz = np.array(ADOBE_RGB).T
    from_xyz = np.array([[3.1338561, -1.6168667, -0.4906146], [-0.9787684, 1.9161415, 0.0334540]])
    from_xyz = np.vstack([from_xyz, [0.0719453, -0.2289914, 1.4052427]])
    linear = ((np.asarray(values) / 255) ** 2.19921875 @ (from_xyz @ to_xyz).T).clip(0, 1)
    curved = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return 255 * curved


COLOURS = np.random.default_rng(0).integers(60, 200, size=(8, 8, 3), dtype=np.uint8)


@pytest.mark.parametrize("form", ["PNG", "TIFF", "WEBP"])
def test_colours_of_another_profile_are_converted(form):
    options = {"lossless": True} if form == "WEBP" else {}
    found = decoded(Image.fromarray(COLOURS), form, icc_profile=profile(2.19921875, ADOBE_RGB), **options)
    assert np.abs(found - srgb_of(COLOURS)).max() < 1.5
    assert np.abs(found - COLOURS.astype(float)).max() > 20


def test_transparent_parts_are_white_in_any_profile_and_greys_stay_grey():
    own = profile(2.19921875, ADOBE_RGB)
    clear = Image.fromarray(np.dstack([COLOURS, np.where(RAMP % 2, 255, 0).astype(np.uint8)]))
    found = decoded(clear, icc_profile=own)
    assert (found[RAMP % 2 == 0] == 255).all()
    assert np.abs(found - srgb_of(COLOURS))[RAMP % 2 == 1].max() < 1.5
    grey_of = decoding.decode(encoded(grey(RAMP), icc_profile=profile(1.0)), NAME, size=8, channels=1)
    linear = RAMP / 255
    expected = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055) * 255
    assert np.abs(grey_of[..., 0] - expected).max() < 1.5


def test_a_data_set_in_memory_keeps_the_profile_of_its_images():
    data = encoded(Image.fromarray(COLOURS), icc_profile=profile(2.19921875, ADOBE_RGB))
    packed = encode_image(Image.open(io.BytesIO(data)), "image 0")
    expected = decoding.decode(data, NAME, size=8, channels=3)
    assert np.array_equal(decoding.decode(packed, NAME, size=8, channels=3), expected)


def test_deep_greys_have_their_declared_levels_whatever_their_profile_is():
    values = np.arange(64, dtype=np.uint16).reshape(8, 8) * 1000
    own = {"icc_profile": profile(1.0)}
    form = {"size": 8, "channels": 1, "levels": Levels(bit_depth=16)}
    expected = decoding.decode(encoded(grey(values)), NAME, **form)
    for data in (
        encoded(grey(values), **own),
        encode_image(Image.open(io.BytesIO(encoded(grey(values), **own))), "one"),
    ):
        assert np.array_equal(decoding.decode(data, NAME, **form), expected)


def test_profiles_of_srgb_broken_ones_and_those_of_other_channels_change_nothing():
    made = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    for own in (made, profile(1.0, ADOBE_RGB, "my sRGB"), b"nothing" * 40, profile(1.0)):
        assert np.array_equal(decoded(Image.fromarray(COLOURS), icc_profile=own), COLOURS)
    rgb = encoded(grey(RAMP), icc_profile=profile(1.0, ADOBE_RGB))
    assert np.array_equal(decoding.decode(rgb, NAME, size=8, channels=1)[..., 0], RAMP)


def test_heic_is_read_where_its_plugin_is_installed():
    pytest.importorskip("pillow_heif", reason="pillow-heif is not installed: pip install pillow-heif")
    assert "HEIF" in decoding.pillow_formats()
    large = Image.fromarray(np.full((64, 80, 3), (40, 120, 200), np.uint8))
    data = encoded(large, "HEIF", quality=95)
    assert decoding.header(data, "a.heic") == decoding.Header(shorter_side=64, longer_side=80, grey=False)
    found = decoding.decode(data, "a.heic", size=8, channels=3)
    assert np.abs(found - np.array([40.0, 120, 200])).max() < 3


def test_heic_names_its_plugin_where_it_is_missing(monkeypatch):
    monkeypatch.setattr(decoding, "pillow_formats", lambda: ("PNG", "JPEG"))
    with pytest.raises(UnreadableError, match=r"'a\.HEIC' is not a readable image; pip install pillow-heif"):
        decoding.header(b"\0\0\0\x1cftypheic" + bytes(40), "a.HEIC")


def test_a_file_in_a_format_that_runs_programs_is_no_image():
    data = encoded(Image.new("RGB", (8, 8)), "EPS")
    with pytest.raises(SfumatoError, match="is not a readable image"):
        decoding.decode(data, NAME, size=8, channels=3)


def pages(count, form="TIFF", **options):
    made = [grey(RAMP // (number + 1)) for number in range(count)]
    return encoded(made[0], form, save_all=True, append_images=made[1:], **options)


def test_a_stack_of_pages_is_refused_as_one_of_dicom_is():
    with pytest.raises(
        UnreadableError, match="has 3 pages, but a single image is needed; save each page as a separate file"
    ):
        decoding.decode(pages(3), NAME, size=8, channels=1)
    with pytest.raises(UnreadableError, match="has 3 pages"):
        decoding.header(pages(3), NAME)
    assert np.array_equal(decoding.decode(pages(1), NAME, size=8, channels=1)[..., 0], RAMP)


@pytest.mark.parametrize(("kind", "whole"), [(1, True), (4, True), (0, False)])
def test_a_tiff_may_hold_smaller_versions_and_masks_of_its_image(kind, whole):
    """Pyramids and previews say so of themselves (TIFF 6.0, NewSubfileType)."""
    smaller = grey(RAMP[:4, :4].copy())
    smaller.encoderinfo = {"tiffinfo": {254: kind}}
    content = encoded(grey(RAMP), "TIFF", save_all=True, append_images=[smaller])
    with Image.open(io.BytesIO(content)) as image:
        image.seek(1)
        assert image.n_frames == 2
        if image.tag_v2.get(254, 0) != kind:
            pytest.skip("this Pillow writes no kind of a page")
    if whole:
        assert np.array_equal(decoding.decode(content, NAME, size=8, channels=1)[..., 0], RAMP)
    else:
        with pytest.raises(UnreadableError, match="has 2 pages"):
            decoding.decode(content, NAME, size=8, channels=1)


@pytest.mark.parametrize("form", ["GIF", "PNG", "WEBP"])
def test_an_animation_is_refused(form):
    options = {"lossless": True} if form == "WEBP" else {}
    for read in (decoding.header, lambda *given: decoding.decode(*given, size=8, channels=1)):
        with pytest.raises(
            UnreadableError, match="'film' is an animation, but a single image is needed; save one frame"
        ):
            read(pages(3, form, **options), "film")
    assert np.array_equal(decoding.decode(pages(1, form, **options), NAME, size=8, channels=1)[..., 0], RAMP)


def test_looking_for_a_second_frame_changes_nothing_of_the_first():
    """Pillow seeks there and back, which may leave another palette, mode or transparency."""
    image = Image.new("RGBA", (8, 8), (200, 30, 30, 255))
    image.paste((0, 0, 0, 0), (0, 0, 4, 8))
    for mode in ("RGBA", "RGB", "P", "L"):
        content = encoded(image.convert(mode), "GIF")
        with Image.open(io.BytesIO(content)) as plain:
            right = decoding.prepare(plain, size=8, channels=3)
        assert np.array_equal(decoding.decode(content, NAME, size=8, channels=3), right)
    assert decoding.decode(encoded(image, "GIF"), NAME, size=8, channels=3)[0, 0].tolist() == [255, 255, 255]
