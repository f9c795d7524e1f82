"""What every source has in common: declared and read facts, the keyed split, the fingerprint.

Records that lie on a device: as they are stored, and only where they fit.
"""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from sfumato import _devices
from sfumato.data import FACTS, open_source
from sfumato.data import source as parts
from sfumato.data.records import TextRecords
from sfumato.data.source import DeviceRecords, fits_on_device


def test_facts_are_read_unless_declared(class_folder, key):
    spec = f"folder:{class_folder(cat=20, dog=20)}"
    source = open_source(spec, owner_key=key)
    assert source.read == FACTS
    assert source.examples == len(source.train)
    facts = {"examples": 1000, "classes": ("dog", "cat"), "size": 10, "channels": 3}
    for fact, value in facts.items():
        one = open_source(spec, owner_key=key, **{fact: value})
        assert one.read == tuple(other for other in FACTS if other != fact)
        assert getattr(one, fact) == value
    every = open_source(spec, owner_key=key, **facts)
    assert every.read == ()
    assert every.train.images.shape == (len(source.train), 10, 10, 3)
    assert every.size_rule == "declared"


def test_private_unless_published_or_said_otherwise(class_folder, key):
    spec = f"folder:{class_folder(cat=9, dog=9)}"
    assert not open_source(spec, owner_key=key).public
    assert open_source(spec, owner_key=key, public=True).public
    assert open_source("digits", owner_key=key).public
    assert not open_source("digits", owner_key=key, public=False).public


def test_a_declared_order_renumbers_the_labels(class_folder, key):
    spec = f"folder:{class_folder(cat=20, dog=10)}"
    read = open_source(spec, owner_key=key)
    declared = open_source(spec, owner_key=key, classes=["dog", "emu", "cat"])
    assert read.classes == ("cat", "dog")
    assert declared.classes == ("dog", "emu", "cat")
    for part in ("train", "test"):
        before, after = getattr(read, part), getattr(declared, part)
        assert np.array_equal(before.images, after.images)
        assert np.array_equal(np.array([2, 0])[before.labels], after.labels)


def images_of(part):
    return {image.tobytes() for image in part.images}


def as_archive(folder, names):
    images = np.stack([np.asarray(Image.open(folder / name)) for name in names])
    labels = np.array([name.startswith("dog") for name in names]).astype(int)
    np.savez(folder / "a.npz", x=images, y=labels)
    return f"npz:{folder}/a.npz"


def as_folder(folder, names):
    copy = folder / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    for name in names:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / name, copy / name)
    return f"folder:{copy}"


@pytest.mark.parametrize("form", [as_archive, as_folder])
def test_taking_records_away_moves_no_other(form, class_folder, key):
    folder = class_folder(cat=30, dog=30)
    names = sorted(str(file.relative_to(folder)) for file in folder.glob("*/*.png"))
    options = {"owner_key": key, "size": 8, "channels": 1, "test_fraction": 0.4}
    whole = open_source(form(folder, names), **options)
    assert len(whole.test) > 5
    assert len(whole.train) > 5
    assert not images_of(whole.train) & images_of(whole.test)
    for kept in (names[1:], names[:-1], names[::2]):
        some = open_source(form(folder, kept), **options)
        assert images_of(some.train) <= images_of(whole.train)
        assert images_of(some.test) <= images_of(whole.test)
        assert len(some.train) + len(some.test) == len(kept)
        assert some.fingerprint != whole.fingerprint


CPU = torch.device("cpu")


@pytest.mark.parametrize("labels", [np.arange(7) % 3, np.eye(7, 4, dtype=np.int64)])
def test_rows_are_the_records_however_they_are_copied(spots, labels, monkeypatch):
    images = np.random.default_rng(0).integers(0, 255, (7, 8, 8, 1), dtype=np.uint8)
    images.flags.writeable = False
    plain = replace(spots.train, images=images, labels=labels, codes=None, rows=None, files=None)
    texts = TextRecords(
        tokens=np.arange(35, dtype=np.int32).reshape(7, 5), labels=labels, codes=np.zeros((7, 32), np.uint8)
    )
    for block in (1, 100, 1 << 20):
        monkeypatch.setattr(parts, "BLOCK", block)
        for records in (plain, texts):
            for rows in (np.array([5, 0, 5]), np.arange(7), np.arange(0)):
                stored, known = DeviceRecords(records, CPU).take(rows)
                assert stored.numpy().dtype == records.take(rows).dtype
                assert np.array_equal(stored, records.take(rows))
                assert np.array_equal(known, labels[rows])


def test_they_lie_there_where_they_fit_and_never_on_the_cpu(spots, monkeypatch):
    size, there = spots.train.images.nbytes, torch.device("meta")
    for free, small in ((int(size / parts.DEVICE_SHARE) + 1, True), (int(size / parts.DEVICE_SHARE) - 9, False)):
        monkeypatch.setattr(_devices, "free_memory", lambda device, free=free: free)
        assert fits_on_device(spots.train, there) == small
        assert not fits_on_device(spots.train, CPU)
