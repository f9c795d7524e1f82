"""The converter of public federated data, on small files in the published layouts."""

import csv
import lzma
import sqlite3
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sfumato import open_source
from sfumato.cli.options import recipe
from tests.scripts import loaded

WRITERS = {"f0000_14": (4, 36, 9), "f0001_41": (61, 0), "f0002_07": (35,) * 30}
"""Labels of each writer's images to train on; the test split has the same, one further on."""


@pytest.fixture(scope="module")
def convert() -> Callable[..., str]:
    """One line of the command, to what it prints or refuses with."""
    module = loaded("examples/federated_data.py")

    def run(*words: object) -> str:
        with pytest.MonkeyPatch.context() as patch:
            printed: list[str] = []
            patch.setattr("builtins.print", printed.append)
            module.main([str(word) for word in words])
        return printed[0]

    return run


def delimited(number: int, inside: bytes) -> bytes:
    """A field of Protocol Buffers that holds bytes."""
    length, head = len(inside), bytearray([number << 3 | 2])
    while length > 127:
        head.append(length & 127 | 128)
        length >>= 7
    return bytes(head) + bytes([length]) + inside


def example(pixels: np.ndarray, label: int, *, packed: bool = True) -> bytes:
    """A tf.train.Example by the specification of Protocol Buffers."""
    floats = pixels.astype("<f4").tobytes()
    if packed:
        floats = delimited(1, floats)
    else:
        floats = b"".join(b"\x0d" + struct.pack("<f", value) for value in pixels.flatten())
    features = {"pixels": delimited(2, floats), "label": delimited(3, b"\x08" + bytes([label]))}
    entries = [delimited(1, delimited(1, name.encode()) + delimited(2, one)) for name, one in features.items()]
    return delimited(1, b"".join(entries))


def pixels_of(writer: str, label: int) -> np.ndarray:
    """(28, 28) in 0..1, the background 1, as TensorFlow Federated has them."""
    image = np.ones((28, 28))
    image[int(writer[4]) : 20, 5:9] = label / 255
    return image


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """emnist_all.sqlite: the tables that TensorFlow Federated reads, with the split of digits besides."""
    path = tmp_path / "emnist_all.sqlite"
    with sqlite3.connect(path) as base:
        base.execute("CREATE TABLE examples (split_name TEXT, client_id TEXT, serialized_example_proto BLOB)")
        base.execute("CREATE TABLE client_metadata (client_id TEXT, split_name TEXT, num_examples INTEGER)")
        for split in ("all_train", "all_test", "digits_only_train"):
            for writer, labels in WRITERS.items():
                base.execute("INSERT INTO client_metadata VALUES (?, ?, ?)", (writer, split, len(labels)))
                for place, label in enumerate(labels):
                    shown = (label + (split == "all_test")) % 62
                    stored = example(pixels_of(writer, shown), shown, packed=place == 0)
                    base.execute("INSERT INTO examples VALUES (?, ?, ?)", (split, writer, stored))
    base.close()
    return path


@pytest.mark.parametrize("packed", [False, True])
def test_emnist_is_that_of_the_authors_code(convert, database: Path, tmp_path: Path, packed: bool):
    if packed:
        database = database.with_suffix(".sqlite.lzma")
        database.write_bytes(lzma.compress(database.with_suffix("").read_bytes()))
    assert "37 images of 5 users, 31 to test on" in convert("emnist", database, tmp_path / "out")
    found = np.load(tmp_path / "out" / "emnist.npz")
    assert found["y_train"].tolist() == [4, 9, 0, *[35] * 30, 5, 10, 0, 1]
    expected = ["f0000_14:TR"] * 2 + ["f0001_41:TR"] + ["f0002_07:TR"] * 30 + ["f0000_14:TE"] * 2 + ["f0001_41:TE"] * 2
    assert found["users_train"].tolist() == expected
    assert found["y_test"].tolist() == [37, *[36] * 30]
    assert "users_test" not in found
    for image, label, user in zip(found["x_train"], found["y_train"], found["users_train"], strict=True):
        np.testing.assert_array_equal(image, np.rint(255 * pixels_of(user, label)))
    source = open_source(f"npz:{tmp_path / 'out' / 'emnist.npz'}", owner_key=bytes(32), open_set=True)
    assert (source.users, source.size, source.channels) == (5, 28, 1)


def picture(path: Path, shade: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), (shade % 256, shade // 256, 0)).save(path)


def rows(table: Path) -> list[dict[str, str]]:
    with table.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def faces(tmp_path: Path) -> Path:
    """Five identities with 72 images and ten with 5, in the folders that two of the archives unpack to."""
    kinds = {("subjects_0-1999_72_imgs", 72): range(5), ("subjects_100000-133332_5_imgs", 5): range(100_000, 100_010)}
    shade = 0
    for (folder, count), identities in kinds.items():
        for identity in identities:
            for number in range(count):
                shade += 1
                picture(tmp_path / "faces" / folder / str(identity) / f"{number}.png", shade)
    return tmp_path / "faces"


def test_digiface_is_split_by_identity(convert, faces: Path, tmp_path: Path):
    told = convert("digiface", faces, tmp_path / "out")
    assert "12 users to train on" in told
    assert told.endswith("4")
    whole, small = rows(tmp_path / "out" / "digiface.csv"), rows(tmp_path / "out" / "digiface10k.csv")
    assert all(row["label"] == row["user"] == Path(row["path"]).parent.name for row in whole)
    train = {row["user"] for row in whole if row["split"] == "train"}
    test = {row["user"] for row in whole if row["split"] == "test"}
    assert (len(train), len(test), train & test) == (12, 3, set())
    assert len(whole) == 5 * 72 + 10 * 5
    assert {row["user"] for row in small if row["split"] == "train"} == {user for user in train if int(user) < 2000}
    assert [row for row in small if row["split"] == "test"] == [row for row in whole if row["split"] == "test"]
    source = open_source(f"csv:{tmp_path / 'out' / 'digiface10k.csv'}", owner_key=bytes(32), open_set=True)
    assert (source.users, len(source.train), source.size) == (4, 4 * 72, 8)
    convert("digiface", faces, tmp_path / "out", "--seed", 1)
    assert rows(tmp_path / "out" / "digiface.csv") != whole


def test_recipes_read_the_files_that_are_written():
    sources = {recipe.table_of(f"{recipe.SCHEME}{name}")["source"] for name in recipe.names() if name.startswith("xu")}
    assert sources - {"folder:imagenet"} == {
        "npz:emnist.npz",
        "csv:digiface.csv",
        "csv:digiface10k.csv",
        "csv:gld.csv",
        "csv:inaturalist.csv",
    }
