"""Data from Python in place of a spelling: what is taken, what it becomes, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from sfumato._checks import SfumatoError
from sfumato.data import Source, open_source

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (80, 8, 8), np.uint8)
LABELS = np.arange(80) % 2


def opened(given: Any, key: bytes = bytes(32), **facts: Any) -> Source:
    return open_source(given, owner_key=key, **facts)


class Pictures(Dataset):
    """As torchvision's folders are: images of PIL, and the names of the classes."""

    classes = ("cat", "dog")

    def __init__(self, images=IMAGES, shift: bool = False):
        self.images, self.shift, self.reads = images, shift, 0

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, place: int):
        self.reads += 1
        image = np.roll(self.images[place], self.reads if self.shift else 0)
        return Image.fromarray(image), int(LABELS[place])


@pytest.fixture
def spelt(tmp_path) -> Source:
    np.savez(tmp_path / "a.npz", x=IMAGES, y=LABELS)
    return opened(f"npz:{tmp_path}/a.npz")


TENSORS = torch.from_numpy(IMAGES)[:, None]


@pytest.mark.parametrize(
    "given",
    [(IMAGES, LABELS), [IMAGES, LABELS.tolist()], {"x": IMAGES, "y": LABELS}, (TENSORS, torch.from_numpy(LABELS))],
)
def test_arrays_and_tensors_are_what_an_archive_of_them_is(given, spelt):
    found = opened(given)
    assert (found.fingerprint, found.data_digests) == (spelt.fingerprint, spelt.data_digests)
    assert (found.kind, found.public, found.places, found.read) == ("arrays", False, (), spelt.read)


def test_four_arrays_are_two_parts_and_labels_may_be_names():
    names = np.array(["dog", "cat"])[LABELS]
    found = opened((IMAGES[:60], names[:60], IMAGES[60:], names[60:]))
    assert (len(found.train), len(found.test), found.classes) == (60, 20, ("cat", "dog"))
    assert found.train.labels.tolist() == (1 - LABELS[:60]).tolist()
    assert found.has_own_split


@pytest.mark.parametrize(
    "given",
    [
        Pictures(),
        Subset(Pictures(), range(80)),
        ConcatDataset([Subset(Pictures(), range(30)), Subset(Pictures(), range(30, 80))]),
        list(zip(map(Image.fromarray, IMAGES), LABELS.tolist(), strict=True)),
        (list(IMAGES), LABELS),
        TensorDataset(TENSORS.float() / 255, torch.from_numpy(LABELS)),
    ],
    ids=lambda one: type(one).__name__,
)
def test_data_sets_are_known_again_as_the_same_images(given, spelt):
    found = opened(given)
    assert found.pixels == spelt.pixels
    assert found.kind == "dataset"
    assert found.classes == (("0", "1") if isinstance(given, (TensorDataset, list, tuple)) else ("cat", "dog"))
    assert opened(given).fingerprint == found.fingerprint
    assert opened(given, key=bytes(31) + b"x").fingerprint != found.fingerprint


@pytest.mark.parametrize("names", [None, ("train", "test"), ("train", "val"), ("train", "test", "val")])
def test_data_sets_are_the_parts_that_they_are_called(names):
    pieces = [Subset(Pictures(), rows) for rows in (range(50), range(50, 80), range(60, 80))]
    found = opened(pieces[:2] if names is None else dict(zip(names, pieces, strict=False)))
    assert (len(found.train), len(found.test), found.classes) == (50, 30, ("cat", "dog"))
    assert (found.train.images[..., 0] == IMAGES[:50]).all()
    assert len(found.notes) == int(names is not None and "val" in names)


def test_each_part_s_numbers_are_read_by_its_own_names():
    others = Pictures()
    others.classes = ("dog", "cat")
    found = opened({"train": Pictures(), "test": others})
    assert (found.train.labels == LABELS).all()
    assert (found.test.labels == 1 - LABELS).all()


def test_a_data_set_that_changes_between_two_reads_is_refused():
    with pytest.raises(SfumatoError, match=r"item \d+ of the Pictures has changed since it was first read"):
        opened(Pictures(shift=True))


def test_each_read_is_compared_with_the_first(monkeypatch):
    found = Pictures()
    from sfumato.data.readers import files

    monkeypatch.setattr(files, "MEMORY_SHARE", 0.0)  # images stay in the data set
    source = opened(found)
    source.train.take(slice(0, 4))
    found.shift = True
    with pytest.raises(SfumatoError, match="has changed since"):
        source.train.take(slice(0, 4))


class Keys(Pictures):
    def __getitem__(self, place: int):
        return dict(zip(("pixels", "labels"), super().__getitem__(place), strict=True))


class Endless(Dataset):
    def __getitem__(self, place: int):
        return IMAGES[0], 0


class Stream(IterableDataset):
    def __iter__(self):
        return iter(())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "source must be data, got NoneType; give a spelling such as"),
        ([1, 2, 3], "got list of 3"),
        (DataLoader(Pictures()), "got DataLoader; give its .dataset"),
        ((pair for pair in Pictures()), "got generator; give a map-style data set"),
        ({"train": Pictures(), "extra": Pictures()}, "source must be data, got dict"),
        (Path("/nowhere"), "source '/nowhere' is of an unknown kind; no run is there either; write one of"),
        (Keys(), "item 0 of the Keys is a dict with the keys pixels, labels, and no pair of image and label"),
        (Endless(), "got Endless; give a map-style data set"),
        (Stream(), "got Stream; give a map-style data set"),
        ((IMAGES, np.full(80, None)), "y of the arrays must be class names \\(N,\\), got object"),
        (TensorDataset(TENSORS), "item 0 of the TensorDataset is 1 things, and no pair of image and label"),
        (TensorDataset(TENSORS.float() - 1.0, torch.from_numpy(LABELS)), "without Normalize"),
        (TensorDataset(TENSORS, torch.rand(80)), "the label of item 0 of the TensorDataset is float32"),
    ],
    ids=lambda one: one if isinstance(one, str) else type(one).__name__,
)
def test_what_is_refused(given, message):
    with pytest.raises(SfumatoError, match=message) as refusal:
        opened(given)
    assert "\n" not in str(refusal.value)


def test_a_table_of_pandas(tmp_path, spelt):
    pandas = pytest.importorskip("pandas")
    for place, image in enumerate(IMAGES):
        Image.fromarray(image).save(tmp_path / f"{place}.png")
    paths = [f"{tmp_path}/{place}.png" for place in range(80)]
    frame = pandas.DataFrame({"path": paths, "label": np.array(["cat", "dog"])[LABELS], "user": np.arange(80) // 2})
    found = opened(frame)
    assert (found.kind, found.pixels, found.users is not None) == ("frame", spelt.pixels, True)
    frame.loc[3, "label"] = None
    with pytest.raises(SfumatoError, match="line 3 of 'DataFrame' has no label"):
        opened(frame)
    with pytest.raises(SfumatoError, match="has no column 'path'"):
        opened(frame.drop(columns="path"))
