"""Which files are meant, and which part each is of by its name."""

from pathlib import Path

import pytest

from sfumato._checks import SfumatoError
from sfumato.data.readers.shards import parts_of, shards_of

FILES = (
    *("data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet", "data/test-00000-of-00001.parquet"),
    *("data/.hidden.parquet", "README.md"),
)


@pytest.fixture
def place(tmp_path) -> Path:
    for name in FILES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("", [FILES[2], *FILES[:2]]),
        ("data/train-*", list(FILES[:2])),
        ("data/{train,test}-00000*", [FILES[0], FILES[2]]),
        ("**/test*.parquet", [FILES[2]]),
        (FILES[1], [FILES[1]]),
    ],
)
def test_a_file_a_folder_or_a_pattern(place, pattern, names):
    found = shards_of(f"{place}/{pattern}", "parquet", ".parquet")
    assert [str(path.relative_to(place)) for path in found] == names


@pytest.mark.parametrize(
    ("names", "parts"),
    [
        (["train/0", "train/1", "val/0"], ["train", "train", "test"]),
        (["imagenet_train.0", "imagenet_val.0"], ["train", "test"]),
        (["train-0", "train-1"], [None, None]),
        (["0", "contest"], [None, None]),
    ],
)
def test_parts_by_names(tmp_path, names, parts):
    shards = [tmp_path / f"{name}.tar" for name in names]
    assert parts_of(shards, "x")[:2] == (shards, parts)


def test_the_validation_shards_are_left_out_beside_a_test_part(tmp_path):
    shards = [tmp_path / f"{name}.tar" for name in ("test-0", "train-0", "train-1", "val-0")]
    note = "the validation part of x is ignored: only train and test are read"
    assert parts_of(shards, "x") == (shards[:3], ["test", "train", "train"], (note,))


@pytest.mark.parametrize(
    ("names", "message"),
    [(["train-0", "more"], "does not say the part"), (["test-0", "dev-0"], "has no train part")],
)
def test_parts_that_would_be_guessed_or_lost_are_refused(tmp_path, names, message):
    with pytest.raises(SfumatoError, match=message):
        parts_of([tmp_path / f"{name}.tar" for name in names], "x")


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("none-*.tar", "no file matches .*none-.*; correct the path after parquet:"),
        ("a-{0..1}.tar", "shard .*a-0.tar' does not exist"),
        ("a-{5..1}.tar", "names -3 shards; name 1 to 100,000, in ascending order"),
        ("data/{t,t}est-00000-of-00001.parquet", "names a shard twice"),
        ("../", "holds no file that ends with .none; correct parquet:"),
    ],
)
def test_patterns_that_lead_nowhere(place, pattern, message):
    suffix = ".none" if pattern == "../" else ".tar"
    with pytest.raises(SfumatoError, match=message):
        shards_of(f"{place}/data/{pattern}" if pattern == "../" else f"{place}/{pattern}", "parquet", suffix)


@pytest.mark.parametrize(
    ("name", "message"), [("me___photos/photos-train.arrow", "ends with .parquet; give a folder that Hugging Face")]
)
def test_what_is_often_met_in_place_of_shards_is_named_with_what_to_do(tmp_path, name, message):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    with pytest.raises(SfumatoError, match=message):
        shards_of(str(tmp_path), "parquet", ".parquet")


@pytest.mark.parametrize("address", ["s3://bucket/train-{000..003}.tar"])
def test_an_address_is_no_path(address):
    with pytest.raises(SfumatoError, match="is a URL, but shards are read from the disk; download them first"):
        shards_of(address, "parquet", ".parquet")
