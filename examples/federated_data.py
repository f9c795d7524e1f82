"""Lays public federated data out as the recipes of Xu et al. 2022 expect them.

python examples/federated_data.py KIND PATH [FOLDER]

  KIND         PATH has                                                        what comes of it, for which recipe
  emnist       emnist_all.sqlite or .sqlite.lzma of TensorFlow Federated, or   emnist.npz: xu2022/emnist
               fed_emnist_train.h5 and fed_emnist_test.h5
  digiface     the unpacked folders of DigiFace-1M, SUBJECT/NUMBER.png         digiface.csv: xu2022/digiface-all;
               with 72 or 5 images each                                        digiface10k.csv: others with DigiFace
  gld          the split landmarks-user-160k (federated_train.csv, test.csv)   gld.csv: xu2022/gld
               and the images of Google Landmarks v2
  inaturalist  the split inaturalist-user-120k, or TensorFlow Federated's      inaturalist.csv: xu2022/inaturalist
               iNaturalist_train.csv and iNaturalist_test.csv, and the images
               of iNaturalist 2017

PATH is a folder, with images at any depth below it, or the database itself. Tables name images by their paths from the
table, and copy none. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import lzma
import math
import os
import random
import shutil
import sqlite3
import struct
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

HELD_OUT_LABEL = 36
"""EMNIST's labels below it, digits and capitals, are to be trained on; small letters are to be tested on."""
SIZES_OF_DIGIFACE = (72, 5)
TRAINED_ON = 0.8
"""Of the identities of DigiFace: the paper's own numbers are not in the copy that the recipes were written from."""
Row = tuple[str, str, str, str]
"""Path, label, user, split: a line of a table."""


def emnist(path: Path, out: Path, *, one_name: bool = False) -> str:
    """Of the writers of both splits the labels below 36 to train on; of the test split the others to test on.

    As in the authors' code pixels are those of TensorFlow Federated times 255 (ink is dark), and a writer is two users,
    one for each split: NAME:TR and NAME:TE. With `one_name` a writer is one user.
    """
    names = ("x_train", "y_train", "users_train", "x_test", "y_test")
    columns: dict[str, list[np.ndarray]] = {name: [] for name in names}
    for split, writer, pixels, labels in _of_writers(path):
        stored = np.clip(np.rint(255 * pixels), 0, 255).astype(np.uint8)
        low = labels < HELD_OUT_LABEL
        user = writer if one_name else f"{writer}:{'TR' if split == 'train' else 'TE'}"
        columns["x_train"].append(stored[low])
        columns["y_train"].append(labels[low])
        columns["users_train"].append(np.full(int(low.sum()), user))
        if split == "test":
            columns["x_test"].append(stored[~low])
            columns["y_test"].append(labels[~low])
    if not columns["x_test"]:
        raise SystemExit(f"{path} holds no test split; give TensorFlow Federated's emnist_all, with both splits")
    arrays = {name: np.concatenate(parts) for name, parts in columns.items()}
    np.savez_compressed(out / "emnist.npz", **arrays)
    users = len(np.unique(arrays["users_train"]))
    return f"{out / 'emnist.npz'}: {len(arrays['x_train'])} images of {users} users, {len(arrays['x_test'])} to test on"


def digiface(path: Path, out: Path, *, seed: int = 0) -> str:
    """Four fifths of the identities to train on, drawn apart among those with 72 images and those with 5.

    digiface.csv has all, digiface10k.csv those with 72 images of the part to train on, and the same part to test on
    (table 1 of the paper). An identity is the class and the user.
    """
    found: dict[int, dict[str, list[Path]]] = {size: {} for size in SIZES_OF_DIGIFACE}
    for folder, _, names in os.walk(path):
        identity, images = Path(folder).name, sorted(name for name in names if name.endswith(".png"))
        if not identity.isdigit() or not images:
            continue
        if len(images) not in found:
            raise SystemExit(f"{folder} has {len(images)} images, and an identity of DigiFace 72 or 5; unpack it anew")
        if any(identity in known for known in found.values()):
            raise SystemExit(f"identity {identity} lies in two folders, {folder} is one of them; take one of them away")
        found[len(images)][identity] = [Path(folder) / name for name in images]
    if not any(found.values()):
        raise SystemExit(f"{path} holds no folders such as 0/0.png; unpack DigiFace-1M there")
    tables: dict[str, list[Row]] = {"digiface.csv": [], "digiface10k.csv": []}
    counts = []
    for size, identities in found.items():
        ordered = sorted(identities, key=int)
        random.Random(seed).shuffle(ordered)
        counts.append(math.ceil(TRAINED_ON * len(ordered)))
        for place, identity in enumerate(ordered):
            split = "train" if place < counts[-1] else "test"
            rows = [(_from(out, image), identity, identity, split) for image in identities[identity]]
            tables["digiface.csv"] += rows
            if split == "test" or size == max(SIZES_OF_DIGIFACE):
                tables["digiface10k.csv"] += rows
    for name, rows in tables.items():
        _write(out / name, rows)
    return f"{out / 'digiface.csv'}: {sum(counts)} users to train on; {out / 'digiface10k.csv'}: {counts[0]}"


def gld(path: Path, out: Path, *, skip_missing: bool = False) -> str:
    """The user split of Google Landmarks v2 (Hsu et al. 2020, arXiv 2003.08082)."""
    columns = {"federated_train.csv": "user_id"}
    return _by_tables(path, out / "gld.csv", columns, ("test.csv",), skip_missing=skip_missing)


def inaturalist(path: Path, out: Path, *, skip_missing: bool = False) -> str:
    """The user split of iNaturalist 2017 (Hsu et al. 2020, arXiv 2003.08082)."""
    columns = {"federated_train_user_120k.csv": "user_id", "iNaturalist_train.csv": "user_120k"}
    tests = ("test.csv", "iNaturalist_test.csv")
    return _by_tables(path, out / "inaturalist.csv", columns, tests, skip_missing=skip_missing)


def _by_tables(path: Path, table: Path, trains: dict[str, str], tests: Iterable[str], *, skip_missing: bool) -> str:
    """A table of a split whose tables name images by their ids; each test image is a user of its own."""
    images = {}
    for folder, _, names in os.walk(path):
        images |= {Path(name).stem: Path(folder) / name for name in names if name.lower().endswith((".jpg", ".jpeg"))}
    train, test = _one_of(path, trains), _one_of(path, tests)
    owner, rows, missing = trains[train.name], [], []
    of_test = ("image_id", "class")
    for source, split, needed in ((train, "train", (owner, *of_test)), (test, "test", of_test)):
        for line in _lines(source, needed):
            name = line["image_id"]
            user = line[owner] if split == "train" else f"test image {name}"
            if user == "NA":  # TensorFlow Federated's table has other splits too, of which this image is
                continue
            if name in images:
                rows.append((_from(table.parent, images[name]), line["class"], user, split))
            else:
                missing.append(name)
    if missing and not skip_missing:
        raise SystemExit(
            f"{len(missing)} of {len(missing) + len(rows)} images are not below {path}, the first {missing[0]}.jpg; "
            "fetch them, or give --skip-missing"
        )
    _write(table, rows)
    users = len({user for _, _, user, split in rows if split == "train"})
    left_out = f", {len(missing)} left out" if missing else ""
    return f"{table}: {len(rows)} images, {users} users to train on{left_out}"


def _of_writers(path: Path) -> Iterator[tuple[str, str, np.ndarray, np.ndarray]]:
    """Split, name, pixels (n, 28, 28) in 0..1 and labels (n,) of each writer, by name, train before test."""
    if path.is_dir():
        yield from _of_hdf5(path)
        return
    if not path.is_file():
        raise SystemExit(f"{path} is not there; give emnist_all.sqlite, or the folder of fed_emnist_train.h5")
    with tempfile.TemporaryDirectory() as folder:
        if path.suffix == ".lzma":
            with lzma.open(path) as packed, (Path(folder) / "emnist.sqlite").open("wb") as plain:
                shutil.copyfileobj(packed, plain)
            path = Path(folder) / "emnist.sqlite"
        with contextlib.closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as base:
            try:
                for split in ("train", "test"):
                    every = base.execute(
                        "SELECT DISTINCT client_id FROM client_metadata WHERE split_name = ? ORDER BY client_id",
                        (f"all_{split}",),
                    ).fetchall()
                    for (writer,) in every:
                        stored = base.execute(
                            "SELECT serialized_example_proto FROM examples WHERE split_name = ? AND client_id = ?",
                            (f"all_{split}", writer),
                        )
                        read = [example(data) for (data,) in stored]
                        pixels = np.array([one["pixels"] for one in read], np.float32).reshape(-1, 28, 28)
                        yield split, writer, pixels, np.array([one["label"][0] for one in read], np.int64)
            except (sqlite3.DatabaseError, KeyError, ValueError, IndexError, struct.error) as error:
                raise SystemExit(f"{path} is not TensorFlow Federated's emnist_all ({error}); fetch it anew") from error


def _of_hdf5(folder: Path) -> Iterator[tuple[str, str, np.ndarray, np.ndarray]]:
    files = {split: _one_of(folder, (f"fed_emnist_{split}.h5",)) for split in ("train", "test")}
    try:
        import h5py
    except ModuleNotFoundError:
        raise SystemExit("fed_emnist_train.h5 is read by h5py; pip install h5py, or give emnist_all.sqlite") from None
    for split, file in files.items():
        with h5py.File(file, "r") as opened:
            for writer in sorted(opened["examples"]):
                held = opened["examples"][writer]
                yield split, writer, np.asarray(held["pixels"]), np.asarray(held["label"], np.int64)


def example(data: bytes) -> dict[str, list[float] | list[int]]:
    """The numbers of a serialized tf.train.Example, by name.

    Example {1: Features {1: entries {1: name, 2: Feature {2: floats {1: ...}, or 3: integers {1: ...}}}}}, numbers
    packed or one by one.

    >>> example(bytes.fromhex("0a100a0e0a056c6162656c12051a030a012a"))
    {'label': [42]}
    """
    found: dict[str, list[float] | list[int]] = {}
    for entry in (entry for _, features in _fields(data) for _, entry in _fields(_message(features))):
        parts = dict(_fields(_message(entry)))
        name = _message(parts[1]).decode()
        for kind, values in _fields(_message(parts[2])):
            floats: list[float] = []
            whole: list[int] = []
            for _, value in _fields(_message(values)):
                if kind == 2:
                    raw = value if isinstance(value, bytes) else struct.pack("<I", value)
                    floats += struct.unpack(f"<{len(raw) // 4}f", raw)
                elif kind == 3:
                    whole += _varints(value) if isinstance(value, bytes) else [value]
            found[name] = floats if kind == 2 else whole
    return found


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field of a message of Protocol Buffers."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield tag >> 3, value
        elif kind == 2:
            length, at = _varint(data, at)
            if at + length > len(data):
                raise ValueError("a field is truncated")
            yield tag >> 3, data[at : at + length]
            at += length
        elif kind == 5:
            yield tag >> 3, struct.unpack_from("<I", data, at)[0]
            at += 4
        else:
            raise ValueError(f"a field of kind {kind}")


def _message(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number where a message should be")
    return value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def _varints(data: bytes) -> list[int]:
    found, at = [], 0
    while at < len(data):
        value, at = _varint(data, at)
        found.append(value)
    return found


def _one_of(path: Path, names: Iterable[str]) -> Path:
    """The one file of these names in a folder."""
    found = [path / name for name in names if (path / name).is_file()]
    if len(found) != 1:
        raise SystemExit(f"{path} holds {len(found)} of the files {', '.join(names)}; put one of them there")
    return found[0]


def _lines(table: Path, needed: tuple[str, ...]) -> list[dict[str, str]]:
    with table.open(newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file)
        absent = [name for name in needed if name not in (rows.fieldnames or ())]
        if absent:
            raise SystemExit(f"{table} has no column {', '.join(absent)}; fetch the split anew")
        return list(rows)


def _from(folder: Path, image: Path) -> str:
    return os.path.relpath(image, folder)


def _write(table: Path, rows: list[Row]) -> None:
    with table.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("path", "label", "user", "split"))
        writer.writerows(rows)


KINDS = {"emnist": emnist, "digiface": digiface, "gld": gld, "inaturalist": inaturalist}


def main(words: list[str] | None = None) -> None:
    """Convert what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=list(KINDS))
    parser.add_argument("path", type=Path)
    parser.add_argument("out", type=Path, nargs="?", default=Path(), help="a folder; by default the present one")
    parser.add_argument("--one-name", action="store_true", help="emnist: a writer is one user, not one for each split")
    parser.add_argument("--seed", type=int, help="digiface: of the draw of identities; 0 by default")
    parser.add_argument(
        "--skip-missing", action="store_true", help="gld, inaturalist: leave out images that are absent"
    )
    asked = vars(parser.parse_args(words))
    kind, path, out = asked.pop("kind"), asked.pop("path"), asked.pop("out")
    given = {name: value for name, value in asked.items() if value not in (None, False)}
    own = {"emnist": {"one_name"}, "digiface": {"seed"}}.get(kind, {"skip_missing"})
    if odd := set(given) - own:
        parser.error(f"--{odd.pop().replace('_', '-')} is not for {kind}")
    if not path.exists():
        raise SystemExit(f"{path} is not there; name where the data lie")
    out.mkdir(parents=True, exist_ok=True)
    print(KINDS[kind](path, out, **given))


if __name__ == "__main__":
    main()
