"""One rule from any image file to uint8 pixels."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sfumato._checks import SfumatoError
from sfumato.data.images import decoding
from sfumato.data.paths import UnreadableError

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
