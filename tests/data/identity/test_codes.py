"""Codes of records: known again in another format, at another size; unrelated under another key."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from sfumato.data import find_known, open_source, own_codes
from sfumato.data.decoding import LARGEST_WHOLE
from sfumato.data.record_users import LENGTH, as_array, pixel_code

KEY = bytes(range(32))


@pytest.fixture
def photos(tmp_path):
    """The same sixteen images, in two classes, as PNG, as lossless TIFF, and as arrays."""
    generator = np.random.default_rng(0)
    images = generator.integers(256, size=(16, 20, 24, 3), dtype=np.uint8)
    labels = np.arange(16) % 2
    for place, (image, label) in enumerate(zip(images, labels, strict=True)):
        for kind, options in (("png", {}), ("tiff", {"compression": "tiff_lzw"})):
            for part in ("train", "test"):
                folder = tmp_path / kind / part / f"{label}"
                folder.mkdir(parents=True, exist_ok=True)
                if (place < 12) == (part == "train"):
                    Image.fromarray(image).save(folder / f"{place}.{kind}", **options)
    np.savez(tmp_path / "a.npz", x_train=images[:12], y_train=labels[:12], x_test=images[12:], y_test=labels[12:])
    return {
        "png": f"folder:{tmp_path / 'png'}",
        "tiff": f"folder:{tmp_path / 'tiff'}",
        "npz": f"npz:{tmp_path / 'a.npz'}",
    }


def opened(spec: str, key: bytes = KEY, **declared):
    return open_source(spec, owner_key=key, **declared)


def test_the_same_images_are_known_again_in_every_format_and_size(photos):
    sources = {kind: opened(spec) for kind, spec in photos.items()}
    assert len({source.stored_digest for source in sources.values()}) == 3
    assert len({source.pixels for source in sources.values()}) == 1
    small = opened(photos["png"], size=8, channels=1)
    assert small.data_digests == sources["png"].data_digests
    for source in sources.values():
        for other in sources.values():
            assert find_known(own_codes(source.train, KEY), own_codes(other.train, KEY)).all()
            assert not find_known(own_codes(source.train, KEY), own_codes(other.test, KEY)).any()


def test_another_owner_s_codes_are_unrelated(photos):
    one, other = (opened(photos["npz"], key) for key in (KEY, bytes(32)))
    assert not set(one.data_digests) & set(other.data_digests)
    assert not find_known(own_codes(one.train, KEY), own_codes(other.train, bytes(32))).any()


def test_one_image_more_is_another_material_and_the_others_are_known_again(photos, tmp_path):
    Image.new("RGB", (24, 20), "red").save(tmp_path / "png" / "train" / "0" / "more.png")
    more, before = opened(photos["png"]), opened(photos["npz"])
    assert not set(more.data_digests) & set(before.data_digests)
    assert find_known(own_codes(more.train, KEY), own_codes(before.train, KEY)).sum() == 12


pixels = st.tuples(st.integers(1, 4), st.integers(1, 4), st.sampled_from([1, 3]), st.binary(min_size=48, max_size=48))


def image(drawn) -> np.ndarray:
    height, width, depth, content = drawn
    return np.frombuffer(content, np.uint8)[: height * width * depth].reshape(height, width, depth)


@settings(max_examples=15)
@given(pixels, pixels)
def test_a_code_is_that_of_the_pixels_and_their_shape(first, second):
    one, two = image(first), image(second)
    same = one.shape[:2] == two.shape[:2] and bool((one == two).all())
    assert (pixel_code(KEY, one) == pixel_code(KEY, two)) == same
    grey = one[:, :, :1]
    assert pixel_code(KEY, grey) == pixel_code(KEY, np.repeat(grey, 3, axis=2)), "of grey images one channel counts"


@pytest.mark.parametrize("channel", [0, 1, 2])
def test_images_that_differ_in_one_channel_alone_have_different_codes(channel):
    for one in (np.random.default_rng(0).integers(256, size=(4, 5, 3), dtype=np.uint8), np.zeros((4, 5, 3), np.uint8)):
        other = one.copy()
        other[2, 3, channel] ^= 1
        assert pixel_code(KEY, one) != pixel_code(KEY, other)


def test_large_jpegs_are_known_by_their_files_alone(tmp_path):
    """Unpacking them as a whole would take several times as long as reading them."""
    generator = np.random.default_rng(0)
    side = 1100
    assert side**2 > LARGEST_WHOLE
    for place in range(8):
        image = Image.fromarray(generator.integers(256, size=(side, side), dtype=np.uint8))
        folder = tmp_path / ("large" if place < 4 else "small") / ("train" if place % 4 < 3 else "test")
        image = image if place < 4 else image.resize((600, 600))
        for label in (0, 1):
            (folder / f"{label}").mkdir(parents=True, exist_ok=True)
            image.rotate(90 * label).save(folder / f"{label}" / f"{place}.jpg")
            image.rotate(90 * label + 180).save(folder / f"{label}" / f"{place}b.jpg")
    for name, alike in (("large", True), ("small", False)):
        codes = own_codes(opened(f"folder:{tmp_path / name}", size=64).train, KEY)
        assert (codes[:, :LENGTH] == codes[:, LENGTH:]).all() == alike


def test_known_again_by_either_code():
    own, stored, shown = (as_array([bytes([a]) * LENGTH + bytes([b]) * LENGTH]) for a, b in ((1, 2), (1, 9), (9, 2)))
    foreign = as_array([bytes([8]) * 2 * LENGTH])
    assert [bool(find_known(own, other).all()) for other in (stored, shown, foreign, own[:0])] == [
        True,
        True,
        False,
        False,
    ]
    assert find_known(own[:0], stored).shape == (0,)
