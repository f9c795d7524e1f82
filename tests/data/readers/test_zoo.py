"""torchvision's data sets, from files in their raw form that the tests write."""

import gzip
import pickle
import shutil

import numpy as np
import pytest
from torchvision import datasets

from sfumato._checks import SfumatoError
from sfumato.data import open_source

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


@pytest.mark.parametrize("name", ["MNIST", "FashionMNIST", "KMNIST"])
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


@pytest.mark.parametrize(("name", "classes"), [("CIFAR10", 10), ("CIFAR100", 100)])
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
    with pytest.raises(SfumatoError, match=r"torchvision:MNIST could not be read in .*; delete"):
        open_source("torchvision:MNIST", owner_key=key, root=str(tmp_path))

    def fail(*_, **__):
        raise RuntimeError("Error downloading\nno route")

    monkeypatch.setattr(datasets.MNIST, "download", fail)
    with pytest.raises(
        SfumatoError, match=r"could not be fetched into .* \(Error downloading no route\); check the conn"
    ):
        open_source("torchvision:MNIST", owner_key=key, root=str(tmp_path), download=True)
