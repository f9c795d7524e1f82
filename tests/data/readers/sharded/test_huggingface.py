"""hf:PATH and data sets of Hugging Face's `datasets` from Python."""

import importlib.util
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sfumato._checks import SfumatoError
from sfumato.data import open_source, refuse_absent

datasets = pytest.importorskip("datasets", reason="Hugging Face's datasets is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")
IMAGES = np.random.default_rng(0).integers(0, 256, (60, 8, 8), np.uint8)


@pytest.fixture(scope="module")
def pictures():
    datasets.disable_progress_bars()
    features = {"picture": datasets.Image(), "kind": datasets.ClassLabel(names=["cat", "dog"])}
    features |= {"user": datasets.Value("int64")}
    columns = {"picture": [Image.fromarray(image) for image in IMAGES], "kind": [0, 1] * 30}
    columns |= {"user": (np.arange(60) // 2).tolist()}
    return datasets.Dataset.from_dict(columns, features=datasets.Features(features))


def opened(given: Any, **facts: Any):
    return open_source(given, owner_key=bytes(32), **facts)


def test_columns_are_found_by_their_features(pictures):
    found = opened(pictures)
    assert (found.kind, found.classes, len(found.train) + len(found.test)) == ("hf", ("cat", "dog"), 60)
    assert found.users is not None
    labels = np.concatenate([found.train.labels, found.test.labels])
    assert (np.bincount(labels) == 30).all()


def test_rows_are_read_as_they_were_chosen(pictures):
    parts = pictures.train_test_split(0.25, seed=1)
    found = opened(parts)
    assert (found.train.images[..., 0] == np.stack([np.asarray(image) for image in parts["train"]["picture"]])).all()
    assert (len(found.train), len(found.test), found.has_own_split) == (45, 15, True)


def test_the_disk_the_memory_and_parquet_hold_the_same(pictures, tmp_path):
    parts = pictures.train_test_split(0.25, seed=1)
    parts.save_to_disk(tmp_path / "saved")
    (tmp_path / "files").mkdir()
    for name, part in parts.items():
        part.to_parquet(tmp_path / "files" / f"{name}.parquet")
    found = opened(parts)
    saved = opened(f"hf:{tmp_path}/saved")
    files = opened(f"hf:{tmp_path}/files")
    assert found.fingerprint == saved.fingerprint
    assert {found.data_digests} == {saved.data_digests} == {files.data_digests}
    assert saved.places == (f"hf:{tmp_path}/saved",)


def test_validation_is_the_test_part_where_there_is_no_other(pictures, tmp_path):
    parts = pictures.train_test_split(0.25, seed=1)
    two = datasets.DatasetDict(train=parts["train"], validation=parts["test"])
    found = opened(two)
    assert (len(found.test), found.notes) == (15, ("the validation part of the DatasetDict is the test part",))
    three = datasets.DatasetDict(**two, test=parts["test"].select(range(10)))
    found = opened(three)
    assert (len(found.train), len(found.test)) == (45, 10)
    assert found.notes == ("the validation part of the DatasetDict is ignored: only train and test are read",)
    three.save_to_disk(tmp_path / "saved")
    (tmp_path / "hub" / "data").mkdir(parents=True)
    (tmp_path / "hub" / "README.md").write_text("---\nlicense: mit\n---\n# Photographs")
    for name, part in three.items():
        for number in range(2):
            shard = part.shard(2, number, contiguous=True)
            shard.to_parquet(tmp_path / "hub" / "data" / f"{name}-0000{number}-of-00002.parquet")
    for spec in (f"hf:{tmp_path}/saved", f"hf:{tmp_path}/hub", f"parquet:{tmp_path}/hub"):
        again = opened(spec)
        assert (len(again.train), len(again.test), again.data_digests) == (45, 10, found.data_digests)
        assert again.notes[0].endswith("is ignored: only train and test are read")


@pytest.mark.parametrize("how", ["numbers", "names", "zeros and ones"])
def test_lists_of_labels_of_which_several_may_be_true(how, tmp_path):
    truth = np.random.default_rng(1).integers(0, 2, (60, 3))
    known, column = ["cat", "dog", "owl"], truth.tolist()
    feature = datasets.Value("int64")
    if how != "zeros and ones":
        column = [
            [known[place] if how == "names" else place for place in np.flatnonzero(row).tolist()] for row in truth
        ]
        feature = datasets.Value("string") if how == "names" else datasets.ClassLabel(names=known)
    features = {"image": datasets.Image(), "labels": datasets.Sequence(feature)}
    columns = {"image": [Image.fromarray(image) for image in IMAGES], "labels": column}
    given = datasets.Dataset.from_dict(columns, features=datasets.Features(features))
    given.to_parquet(tmp_path / "a.parquet")
    for source in (given, f"parquet:{tmp_path}/a.parquet"):
        found = opened(source, label_columns=known)
        assert (found.classes, found.multilabel) == (tuple(known), True)
        pixels = {image.tobytes(): row.tolist() for image, row in zip(IMAGES, truth, strict=True)}
        for part in (found.train, found.test):
            assert [pixels[image.tobytes()] for image in part.images[..., 0]] == part.labels.tolist()
    with pytest.raises(SfumatoError, match="give several labels as label_columns"):
        opened(given, label_column="labels")
    if how == "numbers":
        with pytest.raises(SfumatoError, match=r"label_columns names 'cow', and .* has no such"):
            opened(given, label_columns=["cat", "cow"])


def test_images_may_lie_in_files(tmp_path):
    paths = []
    for place, image in enumerate(IMAGES):
        paths.append(str(tmp_path / f"{place}.png"))
        Image.fromarray(image).save(paths[-1])
    given = datasets.Dataset.from_dict({"image": paths, "label": ["a", "b"] * 30})
    given = given.cast_column("image", datasets.Image())
    assert len(opened(given).train) + len(opened(given).test) == 60


def test_what_is_refused(pictures, tmp_path, monkeypatch):
    pictures.save_to_disk(tmp_path / "saved")
    with pytest.raises(SfumatoError, match=r"is a data set of Hugging Face's datasets; write hf:"):
        refuse_absent(f"folder:{tmp_path}/saved")
    with pytest.raises(SfumatoError, match=r"of an unknown kind; write hf:"):
        opened(f"{tmp_path}/saved")
    with pytest.raises(SfumatoError, match="does not exist; correct the path after hf:"):
        refuse_absent(f"hf:{tmp_path}/nothing")
    with pytest.raises(SfumatoError, match="got IterableDataset; give a map-style"):
        opened(pictures.to_iterable_dataset())
    with pytest.raises(SfumatoError, match=r"the name 'unsupervised' does not say its part"):
        opened(datasets.DatasetDict(train=pictures, unsupervised=pictures))
    for file in Path(tmp_path / "saved").glob("*.arrow"):
        file.write_bytes(b"broken")
    with pytest.raises(SfumatoError, match=r"cannot be read .*, or write it again with save_to_disk"):
        opened(f"hf:{tmp_path}/saved")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SfumatoError, match=r"not installed; pip install 'sfumato\[hf\]'"):
        refuse_absent(f"hf:{tmp_path}/saved")


@pytest.mark.slow
def test_the_five_lines_of_the_docs_end_in_an_onnx_file(pictures, tmp_path, monkeypatch, capsys):
    onnxruntime = pytest.importorskip("onnxruntime")
    page = (Path(__file__).resolve().parents[4] / "docs" / "python.md").read_text("utf-8")
    (lines,) = (block for block in re.findall(r"^```py\n(.*?)^```", page, re.M | re.S) if "load_from_disk" in block)
    assert len(lines.strip().replace("\n\n", "\n").splitlines()) == 5
    monkeypatch.chdir(tmp_path)
    pictures.save_to_disk("digits")
    exec(compile(lines, "docs/python.md", "exec"), {})
    assert "differentially private" in capsys.readouterr().out
    session = onnxruntime.InferenceSession("runs/digits/export-onnx/model.onnx")
    (probabilities,) = session.run(None, {"records": IMAGES[:5, :, :, None]})
    assert probabilities.shape == (5, 2)


def test_a_folder_of_image_files_is_refused_with_what_reads_them(tmp_path):
    from sfumato.data.readers import arrow as huggingface

    (tmp_path / "metadata.csv").write_text("file_name,label\n")
    with pytest.raises(SfumatoError, match=r"holds no Parquet; correct hf:.* read by folder:PATH, .*--path-column"):
        huggingface.find_hugging_face(str(tmp_path))


@pytest.mark.parametrize(
    "argument", ["a--b", "my/own/pictures", "pictures/a.parquet", "../a", "-a", "a/b.", "é", "a..b"]
)
def test_what_is_no_name_of_the_hub_is_refused_as_a_path(argument):
    with pytest.raises(SfumatoError, match="does not exist; correct the path after hf:"):
        refuse_absent(f"hf:{argument}")


def test_what_the_hub_has_is_read_and_what_it_has_not_is_refused(pictures, monkeypatch):
    def kept(name: str) -> Any:
        if name == "owner/kept":
            return pictures
        raise ConnectionError(name)

    monkeypatch.setattr(datasets, "load_dataset", kept)
    assert len(opened("hf:owner/kept").train) > 0
    with pytest.raises(SfumatoError, match=r"hf:pictres cannot be read \(pictres\); correct the name"):
        opened("hf:pictres")
