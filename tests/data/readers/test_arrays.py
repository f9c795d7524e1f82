"""Arrays in one NumPy archive."""

import numpy as np
import pytest

from sfumato import SfumatoError
from sfumato.data import open_source
from sfumato.data.readers import arrays

GENERATOR = np.random.default_rng(0)
IMAGES = GENERATOR.integers(256, size=(40, 8, 8, 3), dtype=np.uint8)
LABELS = np.arange(40) % 2


def opened(tmp_path, key, arrays, **options):
    np.savez(tmp_path / "a.npz", **arrays)
    return open_source(f"npz:{tmp_path}/a.npz", owner_key=key, **options)


def four(images=IMAGES, labels=LABELS, **others):
    halves = {"x_train": images[:30], "y_train": labels[:30], "x_test": images[30:], "y_test": labels[30:]}
    return {**halves, **others}


def test_parts_are_kept_as_they_are(tmp_path, key):
    source = opened(tmp_path, key, four())
    assert np.array_equal(source.train.images, IMAGES[:30])
    assert np.array_equal(source.test.labels, LABELS[30:])
    assert (source.classes, source.size, source.channels) == (("0", "1"), 8, 3)


@pytest.mark.parametrize("shape", [(40, 8, 8), (40, 8, 8, 1)])
def test_grey_arrays_may_leave_out_their_channel(shape, tmp_path, key):
    source = opened(tmp_path, key, four(IMAGES[..., 0].reshape(shape)))
    assert np.array_equal(source.train.images, IMAGES[:30, ..., :1])


@pytest.mark.parametrize("kind", [np.float16, np.float64])
def test_floating_images_in_the_unit_interval_become_bytes(kind, tmp_path, key):
    source = opened(tmp_path, key, four((IMAGES / 255).astype(kind)))
    assert np.array_equal(source.train.images, IMAGES[:30])


def test_names_of_the_archive_and_names_declared(tmp_path, key):
    named = four(classes=np.array(["cat", "dog", "emu"]))
    assert opened(tmp_path, key, named).classes == ("cat", "dog", "emu")
    source = opened(tmp_path, key, named, classes=("dog", "cat"))
    assert source.classes == ("dog", "cat")
    assert np.array_equal(source.train.labels, 1 - LABELS[:30])
    assert "classes" not in source.read
    plain = opened(tmp_path, key, four(), classes=("dog", "cat"))
    assert np.array_equal(plain.train.labels, LABELS[:30])


def test_other_sizes_are_brought_to_a_square(tmp_path, key):
    source = opened(tmp_path, key, four(np.repeat(IMAGES, 2, axis=2)))
    assert source.train.images.shape == (30, 8, 8, 3)
    assert source.cropped_share == 0.5
    assert opened(tmp_path, key, four()).cropped_share == 0
    assert opened(tmp_path, key, four(), size=16, channels=1).test.images.shape == (10, 16, 16, 1)


def medmnist(images, labels):
    """An archive of MedMNIST: of 40 records 20 are for training, 10 for validation and 10 for the test."""
    parts = {"train": slice(20), "val": slice(20, 30), "test": slice(30, 40)}
    return {f"{part}_images": images[of] for part, of in parts.items()} | {
        f"{part}_labels": labels[of] for part, of in parts.items()
    }


def test_archives_of_medmnist_are_read_as_they_are_but_for_their_validation_part(tmp_path, key):
    source = opened(tmp_path, key, medmnist(IMAGES, LABELS[:, np.newaxis].astype(np.uint8)))
    assert np.array_equal(source.train.images, IMAGES[:20])
    assert np.array_equal(source.test.images, IMAGES[30:])
    assert np.array_equal(source.test.labels, LABELS[30:])
    assert source.has_own_split
    (note,) = source.notes
    assert note.endswith("a.npz' is ignored: only train and test are read")
    several = GENERATOR.integers(2, size=(40, 14), dtype=np.uint8)
    grey = opened(tmp_path, key, medmnist(IMAGES[..., 0], several))
    assert grey.multilabel
    assert np.array_equal(grey.train.labels, several[:20])
    assert grey.train.images.shape == (20, 8, 8, 1)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"y_train": LABELS[:3]}, "y_train of .* must be 30 labels"),
        ({"x_test": np.zeros((10, 8, 8, 4), np.uint8)}, r"x_test of .* must be images .* got uint8 \(10, 8, 8, 4\)"),
        ({"x_test": np.zeros((10, 8, 8, 3), np.uint16)}, "x_test of .* has 16-bit pixels"),
        ({"x_test": np.zeros((10, 8, 8, 3), np.int32)}, "x_test of .* must be uint8, got int32"),
        ({"y_test": np.zeros(10, np.complex64)}, "y_test of .* got complex64"),
    ],
)
def test_shapes_and_types_are_refused_before_anything_is_unpacked(change, match, tmp_path, key, monkeypatch):
    """An archive of a few megabytes may hold zeros of any size."""
    monkeypatch.setattr(arrays, "_array", None)
    with pytest.raises(SfumatoError, match=match):
        opened(tmp_path, key, four(**change))


def test_real_arrays(mnist, key):
    source = open_source(f"npz:{mnist}", owner_key=key)
    assert source.train.images.shape == (60_000, 28, 28, 1)
    assert np.bincount(source.train.labels).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert (len(source.test), source.examples, source.public) == (10_000, 60_000, False)


@pytest.mark.parametrize("kind", [np.float32, np.float64, bool, np.int32])
def test_labels_of_other_types_are_the_same_numbers(kind, tmp_path, key):
    assert opened(tmp_path, key, four(labels=LABELS.astype(kind))).train.labels.tolist() == LABELS[:30].tolist()
    several = np.stack([LABELS, np.arange(40) % 3 == 0], axis=1)
    found = opened(tmp_path, key, four(labels=several.astype(kind)), label_columns=("a", "b"))
    assert np.array_equal(found.train.labels, several[:30])


@pytest.mark.parametrize("value", [0.5, -1.0, np.nan, np.inf])
def test_numbers_that_count_no_class_are_refused(value, tmp_path, key):
    with pytest.raises(SfumatoError, match=r"y_train of archive .* got float64 \(30,\); save integers"):
        opened(tmp_path, key, four(labels=np.where(np.arange(40) == 3, value, LABELS)))


def test_names_in_another_order_are_refused_among_labels_from_python(key):
    with pytest.raises(SfumatoError, match=r"classes 'a\|b' and 'b\|a' of the arrays are the same labels"):
        open_source((IMAGES, np.array(["a|b", "b|a"])[LABELS]), owner_key=key)
