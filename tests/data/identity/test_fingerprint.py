"""The fingerprint: unlike for any change, unlike under another key, quick."""

import dataclasses

import numpy as np
import pytest

from sfumato.data.records import Records
from sfumato.data.subsets import fingerprint


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
