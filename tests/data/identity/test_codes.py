"""Codes of records: known again in another format, at another size; unrelated under another key.

The split by keyed hash: each record alone, with the share that was asked for.

The fingerprint: unlike for any change, unlike under another key, quick.
"""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from sfumato.data import find_known, hold_out, open_source, own_codes
from sfumato.data.decoding import LARGEST_WHOLE
from sfumato.data.record_users import LENGTH, as_array, in_test, keyed_position, pixel_code
from sfumato.data.records import Records
from sfumato.data.subsets import fingerprint

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


contents = st.lists(st.binary(max_size=20), max_size=20)
keys = st.binary(min_size=32, max_size=32)


@settings(max_examples=15)
@given(contents, keys, st.binary(max_size=20), st.integers(0, 20))
def test_a_record_more_moves_no_other(records, key, another, place):
    before = [in_test(key, record, 0.3) for record in records]
    longer = [*records[:place], another, *records[place:]]
    after = [in_test(key, record, 0.3) for record in longer]
    del after[min(place, len(records))]
    assert after == before


@settings(max_examples=15)
@given(keys, st.binary(max_size=20))
def test_a_larger_test_part_keeps_its_members(key, record):
    assert in_test(key, record, 0.2) <= in_test(key, record, 0.4)
    assert 0 <= keyed_position(key, record) < 1


def test_places_are_uniform_and_depend_on_the_key():
    records = [number.to_bytes(4, "big") for number in range(20_000)]
    places = {key: [keyed_position(bytes([key]) * 32, record) for record in records] for key in (1, 2)}
    for values in places.values():
        for share in (0.1, 0.2, 0.5):
            found = sum(value < share for value in values) / len(values)
            assert abs(found - share) < 5 * math.sqrt(share * (1 - share) / len(values))
    both = sum(a < 0.5 and b < 0.5 for a, b in zip(*places.values(), strict=True)) / len(records)
    assert abs(both - 0.25) < 0.016


def test_a_record_has_one_code_whatever_is_made_of_it(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (40, 12, 12), np.uint8)
    np.savez(tmp_path / "a.npz", x=images, y=np.arange(40) % 2)
    small, whole = (open_source(f"npz:{tmp_path / 'a.npz'}", owner_key=bytes(32), size=size) for size in (6, 12))
    assert small.fingerprint != whole.fingerprint
    assert small.stored_digest == whole.stored_digest
    assert np.array_equal(small.train.codes, whole.train.codes)
    sides = [hold_out(source, bytes(32), 0.3)[1].labels.tolist() for source in (small, whole)]
    assert sides[0] == sides[1]
    np.savez(tmp_path / "b.npz", x=images[::-1], y=np.arange(40) % 2)
    assert open_source(f"npz:{tmp_path / 'b.npz'}", owner_key=bytes(32)).stored_digest == whole.stored_digest
    np.savez(tmp_path / "c.npz", x=images[1:], y=np.arange(39) % 2)
    assert open_source(f"npz:{tmp_path / 'c.npz'}", owner_key=bytes(32)).stored_digest != whole.stored_digest
    assert open_source(f"npz:{tmp_path / 'a.npz'}", owner_key=bytes(31) + b"x").stored_digest != whole.stored_digest


@pytest.mark.parametrize(("declared", "share"), [({}, 0.2), ({"test_fraction": 0.35}, 0.35)])
def test_a_source_knows_the_share_that_it_was_split_by(tmp_path, declared, share):
    """A model file keeps it, so that who measures again sets the same records aside."""
    labels = np.arange(400) % 2
    images = np.random.default_rng(0).integers(0, 256, (400, 4, 4), np.uint8)
    np.savez(tmp_path / "a.npz", x=images, y=labels)
    source = open_source(f"npz:{tmp_path / 'a.npz'}", owner_key=bytes(32), **declared)
    assert source.test_fraction == share
    assert abs(len(source.test) / 400 - share) < 5 * math.sqrt(share * (1 - share) / 400)


def records(count, seed=0, **changes):
    generator = np.random.default_rng(seed)
    images = generator.integers(256, size=(count, 6, 6, 1), dtype=np.uint8)
    return Records(**{"images": images, "labels": generator.integers(2, size=count), **changes})


TRAIN, TEST, CLASSES = records(5), records(3, 1), ("a", "b")


def changed_pixel(part):
    images = part.images.copy()
    images[-1, -1, -1, -1] ^= 1
    return dataclasses.replace(part, images=images)


def changed_label(part):
    labels = part.labels.copy()
    labels[0] ^= 1
    return dataclasses.replace(part, labels=labels)


def joined(first, second, cut):
    images, labels = np.concatenate([first.images, second.images]), np.concatenate([first.labels, second.labels])
    return Records(images=images[:cut], labels=labels[:cut]), Records(images=images[cut:], labels=labels[cut:])


CHANGES = {
    "pixel of train": (changed_pixel(TRAIN), TEST, CLASSES),
    "pixel of test": (TRAIN, changed_pixel(TEST), CLASSES),
    "label of train": (changed_label(TRAIN), TEST, CLASSES),
    "label of test": (TRAIN, changed_label(TEST), CLASSES),
    "order": (Records(images=TRAIN.images[::-1], labels=TRAIN.labels[::-1]), TEST, CLASSES),
    "parts exchanged": (TEST, TRAIN, CLASSES),
    "boundary of the parts": (*joined(TRAIN, TEST, 4), CLASSES),
    "shape": (dataclasses.replace(TRAIN, images=TRAIN.images.reshape(5, 4, 9, 1)), TEST, CLASSES),
    "class names": (TRAIN, TEST, ("a", "c")),
    "class order": (TRAIN, TEST, ("b", "a")),
    "users": (dataclasses.replace(TRAIN, users=np.array(list("vwxyz"))), TEST, CLASSES),
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_shows(change, key):
    assert fingerprint(key, *CHANGES[change]) != fingerprint(key, TRAIN, TEST, CLASSES)


def test_it_is_the_same_for_the_same_data_and_unlike_under_another_key(key):
    value = fingerprint(key, TRAIN, TEST, CLASSES)
    assert value == fingerprint(key, *joined(TRAIN, TEST, 5), CLASSES)
    assert value != fingerprint(key[::-1], TRAIN, TEST, CLASSES)
    assert len(value) == 64
    assert int(value, 16) >= 0
