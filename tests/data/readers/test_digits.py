"""The embedded digits: everyone has the same ones in the same parts."""

import numpy as np
from sklearn.datasets import load_digits

from sfumato.data import open_source
from sfumato.data.readers import published as digits


def test_the_split_is_the_same_for_every_owner_and_stratified(key):
    source, other = (open_source("digits", owner_key=each) for each in (key, key[::-1]))
    assert np.array_equal(source.test.images, other.test.images)
    assert source.fingerprint != other.fingerprint
    everything = np.bincount(load_digits().target)
    assert np.abs(np.bincount(source.test.labels) - 0.2 * everything).max() <= 0.5
    assert (len(source.train), len(source.test)) == (1438, 359)
    # Figures are compared across machines and versions: the split may never drift.
    assert source.test.labels[:20].tolist() == FIRST_TEST_LABELS


def test_every_digit_is_there_once_from_black_to_white(key):
    source = open_source("digits", owner_key=key)
    images = np.concatenate([source.train.images, source.test.images])
    expected = np.rint(load_digits().images * 255 / 16).astype(np.uint8)
    assert sorted(image.tobytes() for image in images) == sorted(image.tobytes() for image in expected)
    assert (images.min(), images.max()) == (0, 255)
    for part in (source.train, source.test):
        assert np.array_equal(part.images[..., 0], expected[part.rows])


def test_scikit_learn_is_asked_where_its_file_is_elsewhere(key, monkeypatch):
    source = open_source("digits", owner_key=key)
    digits._table.cache_clear()
    monkeypatch.setattr(digits, "find_spec", lambda _: None)
    assert open_source("digits", owner_key=key).fingerprint == source.fingerprint
    digits._table.cache_clear()


FIRST_TEST_LABELS = [0, 1, 3, 6, 7, 0, 6, 9, 0, 9, 6, 7, 0, 1, 3, 3, 4, 1, 5, 2]
