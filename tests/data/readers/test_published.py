"""The embedded digits: everyone has the same ones in the same parts.

torchvision's data sets, from files that the tests write as these data sets hold them.
"""

import gzip
import importlib.util
import json
import pickle
import shutil

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits
from torchvision import datasets

from sfumato._checks import SfumatoError
from sfumato.data import kinds, open_source
from sfumato.data.readers import published as digits
from sfumato.data.readers import published as torchvision_reader


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


GENERATOR = np.random.default_rng(0)


def write_idx(path, array):
    """The idx form: two zero bytes, type 8 (uint8), the number of dimensions, each of them, the bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    head = bytes([0, 0, 8, array.ndim]) + b"".join(length.to_bytes(4, "big") for length in array.shape)
    path.write_bytes(head + array.astype(np.uint8).tobytes())


def write_set(raw, classes, prefixes=("train", "t10k")):
    parts = []
    for prefix, count in zip(prefixes, (3, 2), strict=True):
        labels = np.arange(count * classes) % classes
        images = GENERATOR.integers(256, size=(len(labels), 28, 28), dtype=np.uint8)
        write_idx(raw / f"{prefix}-images-idx3-ubyte", images)
        write_idx(raw / f"{prefix}-labels-idx1-ubyte", labels)
        parts.append((images, labels))
    return parts


@pytest.mark.parametrize("name", ["MNIST", "KMNIST"])
def test_the_family_of_mnist(name, tmp_path, key):
    (train, train_labels), (test, test_labels) = write_set(tmp_path / name / "raw", 10)
    source = open_source(f"torchvision:{name.lower()}", owner_key=key, root=str(tmp_path))
    assert np.array_equal(source.train.images[..., 0], train)
    assert np.array_equal(source.test.images[..., 0], test)
    assert np.array_equal(source.train.labels, train_labels)
    assert np.array_equal(source.test.labels, test_labels)
    assert (source.kind, source.public, source.read, len(source.classes)) == ("torchvision", True, (), 10)
    if name == "MNIST":
        assert source.classes == tuple("0123456789")


def test_emnist_is_turned_upright(tmp_path, key):
    (train, _), _ = write_set(tmp_path / "EMNIST" / "raw", 47, ("emnist-balanced-train", "emnist-balanced-test"))
    source = open_source("torchvision:EMNIST", owner_key=key, root=str(tmp_path))
    assert np.array_equal(source.train.images[5, :, :, 0], train[5].T)
    assert len(source.classes) == 47
    assert source.classes[9:12] == ("9", "A", "B")


@pytest.mark.parametrize(("name", "classes"), [("CIFAR10", 10)])
def test_cifar(name, classes, tmp_path, key, monkeypatch):
    """The official files carry checksums, so the loader is told to expect those of the files written here."""
    kind = getattr(datasets, name)
    folder = tmp_path / kind.base_folder
    folder.mkdir()
    label_key = "labels" if name == "CIFAR10" else "fine_labels"

    def write(file, content):
        (folder / file).write_bytes(pickle.dumps(content))

    planes = GENERATOR.integers(256, size=(2 * classes, 3, 32, 32), dtype=np.uint8)
    content = {"data": planes.reshape(len(planes), -1), label_key: [number % classes for number in range(len(planes))]}
    for file, _ in kind.train_list + kind.test_list:
        write(file, content)
    write(kind.meta["filename"], {kind.meta["key"]: [f"class {number}" for number in range(classes)]})
    monkeypatch.setattr(datasets.cifar, "check_integrity", lambda *_: True)
    source = open_source(f"torchvision:{name}", owner_key=key, root=str(tmp_path), public=False, examples=7)
    assert np.array_equal(source.test.images, planes.transpose(0, 2, 3, 1))
    assert len(source.train) == len(kind.train_list) * len(planes)
    assert source.classes[-1] == f"class {classes - 1}"
    assert (source.size, source.channels, source.public, source.examples) == (32, 3, False, 7)


def test_official_files_of_mnist(mnist, tmp_path, key):
    """The official test files stand in for the training files, which are not at hand."""
    if not (mnist.parent / "mnist_idx").is_dir():
        pytest.skip("no mnist_idx beside mnist.npz")
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for form in ("images-idx3", "labels-idx1"):
        with gzip.open(mnist.parent / "mnist_idx" / f"mnist-t10k-{form}-ubyte.gz") as packed:
            (raw / f"t10k-{form}-ubyte").write_bytes(packed.read())
        shutil.copy(raw / f"t10k-{form}-ubyte", raw / f"train-{form}-ubyte")
    source = open_source("torchvision:MNIST", owner_key=key, root=str(tmp_path))
    with np.load(mnist) as archive:
        assert np.array_equal(source.test.images[..., 0], archive["x_test"])
        assert np.array_equal(source.test.labels, archive["y_test"])


def test_a_damaged_file_and_a_failed_download_are_said(tmp_path, key, monkeypatch):
    write_set(tmp_path / "MNIST" / "raw", 10)
    file = tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte"
    file.write_bytes(file.read_bytes()[:500])
    with pytest.raises(SfumatoError, match=r"torchvision:MNIST could not be read in .*; pass download=True"):
        open_source("torchvision:MNIST", owner_key=key, root=str(tmp_path))

    def fail(*_, **__):
        raise RuntimeError("Error downloading\nno route")

    monkeypatch.setattr(datasets.MNIST, "download", fail)
    with pytest.raises(SfumatoError, match=r"could not be read in .* \(Error downloading no route\); check the conn"):
        open_source("torchvision:MNIST", owner_key=key, root=str(tmp_path), download=True)


def pictures(folder, count, color, suffix="jpg"):
    folder.mkdir(parents=True)
    for number in range(count):
        image = GENERATOR.integers(256, size=(9, 8, 3), dtype=np.uint8)
        image[..., 1] = color
        Image.fromarray(image).save(folder / f"{folder.name}_{number}.{suffix}")


@pytest.mark.parametrize("name", ["Food101", "Country211", "Imagenette", "EuroSAT"])
def test_any_data_set_with_classes_is_read_by_its_signature(name, tmp_path, key):
    """Two parts, three of which the validation part is left out, a validation part alone, and no parts at all."""
    if name == "Food101":
        names = ["apple_pie", "waffles"]
        for one, color in zip(names, (10, 200), strict=True):
            pictures(tmp_path / "food-101" / "images" / one, 5, color)
        (tmp_path / "food-101" / "meta").mkdir()
        for split, numbers in (("train", (0, 1, 3)), ("test", (2, 4))):
            listed = {one: [f"{one}/{one}_{number}" for number in numbers] for one in names}
            (tmp_path / "food-101" / "meta" / f"{split}.json").write_text(json.dumps(listed))
    else:
        root, parts, names = {
            "Country211": ("country211", {"train": 3, "valid": 4, "test": 2}, ["AD", "ZW"]),
            "Imagenette": ("imagenette2", {"train": 3, "val": 2}, list(datasets.Imagenette._WNID_TO_CLASS)),
            "EuroSAT": ("eurosat/2750", {"": 10}, ["Forest", "River"]),
        }[name]
        for part, count in parts.items():
            for place, one in enumerate(names):
                suffix = "jpeg" if name == "Imagenette" else "jpg"
                pictures(tmp_path / root / part / one, count, 200 if place else 10, suffix)
        if name == "Imagenette":
            names = [", ".join(known) for known in datasets.Imagenette._WNID_TO_CLASS.values()]
    source = open_source(f"torchvision:{name.lower()}", owner_key=key, root=str(tmp_path))
    assert (source.kind, source.public, source.size) == ("torchvision", True, 8)
    assert list(source.classes) == names
    counts = [np.bincount(part.labels, minlength=len(names)).tolist() for part in (source.train, source.test)]
    if name == "EuroSAT":
        assert np.sum(counts, axis=0).tolist() == [10, 10]
        assert not source.has_own_split
    else:
        assert counts == [[3] * len(names), [2] * len(names)]
    greens = source.train.images[..., 1].mean((1, 2))
    assert ((greens > 100) == (source.train.labels > 0)).all()
    told = (f"the validation part of torchvision:{name} is the test part",) if name == "Imagenette" else ()
    assert source.notes == told


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("VOCDetection", "torchvision:VOCDetection is not a data set of images with one class each; choose one of"),
        ("imagefolder", "torchvision:ImageFolder is not a data set of .*; write folder:PATH for a folder"),
        ("Food10", "'torchvision:Food10' is not known; did you mean torchvision:Food101"),
        ("Flowers102", r"torchvision:Flowers102 is not in '.*', or is damaged there; pass download=True to fetch it"),
        ("ImageNet", r"torchvision:ImageNet is not in .*; put its files there yourself, or pass root"),
    ],
)
def test_what_is_no_data_set_with_classes_or_is_not_there_is_refused_by_name(name, message, tmp_path, key):
    with pytest.raises(SfumatoError, match=message):
        open_source(f"torchvision:{name}", owner_key=key, root=str(tmp_path))


def test_a_shell_is_offered_what_the_reader_takes(monkeypatch, tmp_path):
    assert {*kinds.torchvision_names()} > {*torchvision_reader.torchvision_sets()}
    spec = importlib.util.spec_from_file_location(
        "torchvision", tmp_path / "__init__.py", submodule_search_locations=[str(tmp_path)]
    )
    for found in (None, spec):  # neither installed nor whole
        monkeypatch.setattr(kinds, "find_spec", lambda name, found=found: found)
        assert kinds.torchvision_names() == []


def test_most_data_sets_of_torchvision_are_known():
    known = torchvision_reader.torchvision_sets()
    wanted = "Flowers102 OxfordIIITPet Food101 GTSRB EuroSAT PCAM SVHN STL10 DTD FGVCAircraft CelebA QMNIST USPS"
    assert set(wanted.split()) | set(torchvision_reader.IN_ARRAYS) <= set(known)
    assert not {"CocoDetection", "Kitti", "MovingMNIST", "UCF101", "SBU", "FakeData", "VisionDataset"} & set(known)
