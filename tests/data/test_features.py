"""The cache of features: what is read is what was written, piece by piece, and nothing else is taken for it."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato._checks import SfumatoError
from sfumato.data import Cache, Contents, open_source
from sfumato.data.features import DTYPES

CODES = np.arange(96, dtype=np.uint8).reshape(3, 32)
SOURCE = {
    "kind": "npz",
    "fingerprint": "ab" * 32,
    "material": "cd" * 32,
    "pixels": "ef" * 32,
    "classes": ["a", "b", "c"],
    "examples": 20,
    "read": ["examples", "size"],
    "public": False,
    "size": 8,
    "channels": 3,
    "size_rule": "declared",
    "filtered": False,
    "parted": True,
    "places": [],
}


def contents(*, train: int = 20, test: int = 7, width: int = 5, **others) -> Contents:
    return Contents(width=width, counts={"train": train, "test": test}, source=SOURCE, rows=8, **others)


def made(path: Path, what: Contents, seed: int = 0) -> dict[str, tuple[torch.Tensor, np.ndarray]]:
    """Write a whole cache of random features; returns them by part."""
    cache = Cache(path)
    cache.begin(what)
    generator, parts = torch.Generator().manual_seed(seed), {}
    for part in ("train", "test"):
        views = what.stored if part == "train" else 1
        features = torch.randn(what.counts[part], views, what.width, generator=generator)
        labels = np.arange(what.counts[part]) % 3
        codes = np.random.default_rng(seed).integers(0, 256, (len(labels), 32), np.uint8)
        for name, rows in what.pieces(part):
            some = slice(rows.start, rows.stop)
            cache.write(name, features[some], labels[some], codes[some])
        parts[part] = features.to(DTYPES[what.dtype]).float(), labels
    return parts


@settings(max_examples=12, deadline=None)
@given(
    count=st.integers(1, 30),
    views=st.integers(1, 3),
    middle=st.booleans(),
    dtype=st.sampled_from(sorted(DTYPES)),
    rows=st.integers(1, 9),
    chosen=st.lists(st.integers(0, 10**6), max_size=40),
)
def test_any_records_in_any_order_are_read_back(tmp_path_factory, count, views, middle, dtype, rows, chosen):
    path = tmp_path_factory.mktemp("cache")
    path.rmdir()
    what = replace(contents(train=count, views=views, middle=middle, dtype=dtype), rows=rows)
    features, labels = made(path, what)["train"]
    records = Cache(path).records("train")
    places = np.array([place % count for place in chosen], dtype=np.int64)
    assert np.array_equal(records.take(places), features[places].numpy())
    assert np.array_equal(records.labels, labels)
    assert np.array_equal(records.take(slice(1, None)), features[1:].numpy())
    take = records.buffered_take()
    first, second = take(places), take(slice(None))
    assert np.array_equal(first, features[places].numpy())
    assert np.array_equal(second, features.numpy())
    assert np.array_equal(take(places[::-1]), features[places[::-1].copy()].numpy())
    mask = np.arange(count) % 2 == 0
    some = records.select(mask).select(np.arange(mask.sum()) > 0)
    assert np.array_equal(some.take(slice(None)), features[mask][1:].numpy())
    assert np.array_equal(some.labels, labels[mask][1:])
    assert records.nbytes == 0


def test_it_is_a_source_with_the_facts_of_the_images(tmp_path):
    made(tmp_path / "c", contents())
    source = open_source(f"features:{tmp_path / 'c'}", owner_key=bytes(32))
    assert (source.kind, source.shape, source.classes, source.examples) == ("features", (5,), ("a", "b", "c"), 20)
    assert (source.read, source.public, source.fingerprint) == (("examples", "size"), False, "ab" * 32)
    assert not source.published
    declared = open_source(f"features:{tmp_path / 'c'}", owner_key=bytes(32), examples=21, public=True)
    assert (declared.examples, declared.read, declared.public) == (21, ("size",), True)
    with pytest.raises(SfumatoError, match=r"size, channels of features:.* were fixed when it was made"):
        open_source(f"features:{tmp_path / 'c'}", owner_key=bytes(32), size=8, channels=1)


def test_a_cache_that_was_cut_says_what_is_missing_and_goes_on(tmp_path):
    what = contents()
    made(tmp_path / "c", what)
    before = (tmp_path / "c" / "train-00001.safetensors").read_bytes()
    (tmp_path / "c" / "train-00001.safetensors").unlink()
    cache = Cache(tmp_path / "c")
    assert cache.missing("train") == [("train-00001.safetensors", range(8, 16))]
    with pytest.raises(SfumatoError, match="is incomplete: 1 of its pieces are missing; repeat the command"):
        cache.records("train")
    made(tmp_path / "c", what)
    assert (tmp_path / "c" / "train-00001.safetensors").read_bytes() == before


@pytest.mark.parametrize(
    ("change", "words"),
    [({"dtype": "float16"}, "dtype was float32 and is float16"), ({"digest": "x"}, "digest was None and is x")],
)
def test_it_goes_on_only_as_what_it_was(tmp_path, change, words):
    made(tmp_path / "c", contents())
    with pytest.raises(SfumatoError, match=f"was started with other settings: {words}; repeat the original command"):
        Cache(tmp_path / "c").begin(replace(contents(), **change))


def test_the_same_pixels_from_other_files_are_other_images(tmp_path):
    what = contents()
    made(tmp_path / "c", what)
    for facts in ({"material": "0" * 64}, {"material": "0" * 64, "fingerprint": "0" * 64}):
        with pytest.raises(SfumatoError, match="was started with other settings: its images or labels have changed;"):
            Cache(tmp_path / "c").begin(replace(what, source=SOURCE | facts))


def test_damage_is_refused_by_name(tmp_path):
    made(tmp_path / "c", contents())
    made(tmp_path / "other", replace(contents(), origins=["timm"]))
    piece = tmp_path / "c" / "train-00000.safetensors"
    whole = piece.read_bytes()
    piece.write_bytes(whole[:-4])
    with pytest.raises(SfumatoError, match=r"train-00000.* is truncated"):
        Cache(tmp_path / "c").records("train")
    piece.write_bytes(b"nonsense" * 9)
    with pytest.raises(SfumatoError, match=r"train-00000.* is damaged"):
        Cache(tmp_path / "c").records("train")
    piece.write_bytes((tmp_path / "other" / piece.name).read_bytes())
    with pytest.raises(SfumatoError, match=r"train-00000.* belongs to another cache"):
        Cache(tmp_path / "c").records("train")
    piece.write_bytes((tmp_path / "c" / "train-00001.safetensors").read_bytes())
    with pytest.raises(SfumatoError, match="belongs to another cache"):
        Cache(tmp_path / "c").records("train")
    piece.write_bytes(whole)
    index = json.loads((tmp_path / "c" / "features.json").read_text())
    (tmp_path / "c" / "features.json").write_text(json.dumps(index | {"format": 1}))
    with pytest.raises(SfumatoError, match="is of another version of sfumato"):
        Cache(tmp_path / "c").records("train")
    (tmp_path / "c" / "features.json").write_text(json.dumps(index | {"more": 1}))
    with pytest.raises(SfumatoError, match=r"features\.json is damaged"):
        Cache(tmp_path / "c").records("train")


@pytest.mark.parametrize("place", ["features", "labels", "codes"])
def test_numbers_that_were_changed_are_refused(tmp_path, place):
    made(tmp_path / "c", contents())
    piece = tmp_path / "c" / "train-00001.safetensors"
    told, path = bytearray(piece.read_bytes()), f"features:{tmp_path / 'c'}"
    at = json.loads(told[8 : 8 + int.from_bytes(told[:8], "little")])[place]["data_offsets"][1]
    told[8 + int.from_bytes(told[:8], "little") + at - 3] ^= 1
    piece.write_bytes(told)
    with pytest.raises(SfumatoError, match=r"train-00001.* holds other numbers than were written; delete it"):
        open_source(path, owner_key=bytes(32))


def test_what_binds_a_run_to_the_features_hangs_on_every_number_and_on_the_key(tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        made(tmp_path / name, contents(), seed)
    found = {name: open_source(f"features:{tmp_path / name}", owner_key=bytes(32)).features for name in "abc"}
    assert found["a"] == found["b"] != found["c"]
    assert open_source(f"features:{tmp_path / 'a'}", owner_key=bytes(31) + b"x").features != found["a"]
    told = []
    open_source(f"features:{tmp_path / 'a'}", owner_key=bytes(32), progress=lambda *figures: told.append(figures))
    assert told == [(1, 3), (2, 3), (3, 3), (1, 1)]


def test_labels_that_are_no_classes_are_refused(tmp_path):
    cache, what = Cache(tmp_path / "c"), contents(train=3, test=3)
    cache.begin(what)
    for part in ("train", "test"):
        cache.write(f"{part}-00000.safetensors", torch.zeros(3, 1, 5), np.array([0, 3, 1]), CODES[:3])
    with pytest.raises(SfumatoError, match="has labels from 0 to 3 and 3 classes; delete it"):
        open_source(f"features:{tmp_path / 'c'}", owner_key=bytes(32))


def test_a_piece_that_shrinks_while_it_is_read_is_refused(tmp_path):
    made(tmp_path / "c", contents())
    records = Cache(tmp_path / "c").records("train")
    os.truncate(tmp_path / "c" / "train-00000.safetensors", 200)
    with pytest.raises(SfumatoError, match="truncated"):
        records.take(slice(None))


def test_the_files_are_for_the_owner_alone(tmp_path):
    made(tmp_path / "c", contents())
    modes = {path.name: path.stat().st_mode & 0o077 for path in (tmp_path / "c", *(tmp_path / "c").iterdir())}
    assert set(modes.values()) == {0}, modes


def test_numbers_beyond_half_precision_are_refused(tmp_path):
    what = contents(train=1, test=1, dtype="float16")
    cache = Cache(tmp_path / "c")
    cache.begin(what)
    with pytest.raises(SfumatoError, match="beyond the range of float16; give dtype=bfloat16"):
        cache.write("train-00000.safetensors", torch.full((1, 1, 5), 1e6), np.zeros(1, np.int64), CODES[:1])
    one_of_them = torch.tensor([[[1.0, 1e6, torch.nan, torch.inf, 0.0]]])
    with pytest.raises(SfumatoError, match="beyond the range of float16"):
        cache.write("train-00000.safetensors", one_of_them, np.zeros(1, np.int64), CODES[:1])


def test_other_places_are_not_touched(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "note.txt").write_text("mine")
    with pytest.raises(SfumatoError, match="holds no features; give a new directory"):
        Cache(tmp_path / "full").begin(contents())
    with pytest.raises(SfumatoError, match="does not exist; make it with sfumato features"):
        Cache(tmp_path / "none").contents  # noqa: B018
    with pytest.raises(SfumatoError, match=r"full/features\.json' does not exist; make it with sfumato features"):
        Cache(tmp_path / "full").contents  # noqa: B018
