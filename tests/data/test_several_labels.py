"""Labels of which none, one or many are true of an image: each image keeps its own, wherever it goes."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from sfumato import SfumatoError
from sfumato.data import Cache, Contents, SourceSpec, hold_out, open_source, write_without
from sfumato.data.subsets import cap_per_user

NAMES = ("cough", "fever", "pain")
COUNT = 60


def truth() -> np.ndarray:
    """Labels (N, 3), all eight kinds of them."""
    return np.arange(COUNT)[:, None] >> np.arange(3) & 1


@pytest.fixture
def table(tmp_path) -> Path:
    """Images whose first pixel is their number, and a table whose columns are in another order."""
    lines = ["pain,path,fever,user,cough"]
    for number, (cough, fever, pain) in enumerate(truth().tolist()):
        pixels = np.full((8, 8), number, np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
        lines.append(f"{pain},{number}.png,{fever},u{number // 3},{cough}")
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    return tmp_path / "t.csv"


def opened(table, key, names=NAMES, **options):
    return open_source(f"csv:{table}", owner_key=key, label_columns=names, **options)


def of_each(part) -> dict[int, list[int]]:
    """The labels of each image, by its number."""
    return dict(zip(part.take(slice(None))[:, 0, 0, 0].tolist(), part.labels.tolist(), strict=True))


def test_each_image_has_the_labels_of_its_own_line(table, key):
    source = opened(table, key)
    assert source.classes == NAMES
    assert source.multilabel
    assert "classes" not in source.read
    assert source.class_arguments == {"label_columns": NAMES}
    assert of_each(source.train) | of_each(source.test) == dict(enumerate(truth().tolist()))
    turned = opened(table, key, NAMES[::-1])
    assert of_each(turned.train) | of_each(turned.test) == dict(enumerate(truth()[:, ::-1].tolist()))
    assert len(opened(table, key, NAMES[:2]).train.labels[0]) == 2
    again = SourceSpec(**SourceSpec(spec=f"csv:{table}", label_columns=NAMES).record()).open(key)
    assert again.fingerprint == source.fingerprint
    with pytest.raises(
        SfumatoError, match="this needs one class for each record, but the source has 3 independent labels"
    ):
        source.require_classes("this")


def test_images_that_stay_in_their_files_have_them_too(table, key, monkeypatch):
    held = opened(table, key)
    monkeypatch.setattr("sfumato.data.readers.files.memory_limit", lambda: 0)
    source = opened(table, key)
    assert type(source.train) is not type(held.train)
    assert of_each(source.train) == of_each(held.train)
    assert source.fingerprint == held.fingerprint


def test_the_fingerprint_has_every_label(table, key):
    source, text = opened(table, key), table.read_text()
    seen = {source.fingerprint, opened(table, key, ("fever", "cough", "pain")).fingerprint}
    for line in (1, COUNT // 2, COUNT):
        lines = text.split("\n")
        lines[line] = f"{1 - int(lines[line][0])}{lines[line][1:]}"
        table.write_text("\n".join(lines))
        changed = opened(table, key)
        assert changed.data_digests == source.data_digests  # the images are the same ones
        seen.add(changed.fingerprint)
    assert len(seen) == 5


def test_parts_of_parts_keep_them(table, key):
    source, known = opened(table, key), dict(enumerate(truth().tolist()))
    rest, validation = hold_out(source, key, 0.3)
    for part in (rest.train, validation, cap_per_user(source, key, 2).train):
        assert 0 < len(part) < COUNT
        assert of_each(part).items() <= known.items()


@pytest.mark.parametrize("names", [None, NAMES[::-1]])
def test_an_archive(names, tmp_path, key):
    images = np.zeros((COUNT, 8, 8), np.uint8) + np.arange(COUNT, dtype=np.uint8)[:, None, None]
    np.savez(tmp_path / "named.npz", x=images, y=truth().astype(bool), classes=np.array(NAMES))
    np.savez(tmp_path / "bare.npz", x=images, y=truth().astype(np.uint8))
    named, bare = (
        open_source(f"npz:{tmp_path}/{n}.npz", owner_key=key, label_columns=names) for n in ("named", "bare")
    )
    assert named.classes == (names or NAMES)
    assert bare.classes == (names or ("0", "1", "2"))
    assert ("classes" in named.read) is (names is None)
    turned = truth()[:, ::-1] if names == NAMES[::-1] else truth()
    assert of_each(named.train) | of_each(named.test) == dict(enumerate(turned.tolist()))
    assert of_each(bare.train) | of_each(bare.test) == dict(enumerate(truth().tolist()))


def test_rare_and_absent_labels_are_no_reason_to_refuse(tmp_path, key):
    labels = np.zeros((COUNT, 3), int)
    labels[0, :2] = 1
    images = np.zeros((COUNT, 8, 8), np.uint8) + np.arange(COUNT, dtype=np.uint8)[:, None, None]
    np.savez(tmp_path / "a.npz", x=images, y=labels)
    assert open_source(f"npz:{tmp_path}/a.npz", owner_key=key).train.labels.sum() <= 2


def test_what_is_written_without_some_is_read_again(table, key, tmp_path):
    source = opened(table, key)
    parts = {"train": source.train, "test": source.test}
    for name, changed in (("files", parts), ("arrays", {n: replace(p, files=None) for n, p in parts.items()})):
        spec = write_without(changed, source.classes, {0, 1}, tmp_path / name, marked=False)
        again = open_source(spec, owner_key=key, label_columns=NAMES)
        assert of_each(again.train) == dict(list(of_each(source.train).items())[2:])
        assert of_each(again.test) == of_each(source.test)


def test_a_cache_keeps_them(tmp_path, key):
    known = {"kind": "csv", "fingerprint": "ab" * 32, "material": "cd" * 32, "classes": list(NAMES), "examples": 20}
    known |= {"read": [], "public": False, "size": 8, "channels": 1, "size_rule": "declared"}
    known |= {"filtered": False, "parted": True, "pixels": "ef" * 32, "places": []}
    what = Contents(width=5, counts={"train": 20, "test": 7}, source=known, rows=8)
    cache = Cache(tmp_path / "cache")
    cache.begin(what)
    labels = {"train": truth()[:20], "test": truth()[20:27]}
    for part, own in labels.items():
        for name, rows in what.pieces(part):
            some = own[rows.start : rows.stop].astype(np.int64)
            codes = np.zeros((len(some), 32), np.uint8)
            cache.write(name, torch.randn(len(some), what.stored if part == "train" else 1, what.width), some, codes)
    source = open_source(f"features:{tmp_path}/cache", owner_key=key)
    assert source.multilabel
    assert source.train.labels.tolist() == labels["train"].tolist()
    assert source.test.select(np.arange(7) > 3).labels.tolist() == labels["test"][4:].tolist()
