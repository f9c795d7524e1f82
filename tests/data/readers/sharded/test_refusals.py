"""Bad shards, one way after another: each is refused in one line that names it and says what to do."""

import importlib.util

import numpy as np
import pyarrow as pa
import pytest

from sfumato._checks import SfumatoError
from sfumato.data import open_source
from sfumato.data.kinds import refuse_absent
from sfumato.data.readers import shards as row_groups
from tests.data.readers.sharded.stored import as_table, records, write_parquet

KEY = bytes(range(32))
SOME = records(24)


def without(table, *names):
    return table.drop_columns(list(names))


def labelled(values, kind=None):
    return without(as_table(SOME, named=False), "label").append_column("label", pa.array(values, kind))


def beside(name, values):
    return as_table(SOME, users=False, **{name: pa.array(values)})


PARQUET = {
    "no column of images": (
        without(as_table(SOME, named=False), "image"),
        "has no column 'image'; it holds label, user; rename the column of images to image",
    ),
    "images that are numbers": (
        as_table(SOME).set_column(0, "image", pa.array(range(24))),
        "column 'image' of shard '.*' is int64, and no bytes of image files",
    ),
    "a label that is missing": (labelled([None, *[1] * 23]), r"row 0' has no label; fill it in, or remove the row"),
    "real numbers as labels": (labelled([0.5] * 24), "column 'label' of .* is double; write integers or text"),
    "a label beyond the names": (
        as_table(SOME).set_column(1, "label", pa.array([*[1] * 23, 2])),
        "row 23' has the label 2, but 2 classes are named",
    ),
    "an empty user": (beside("user", ["ann", " ", *["bob"] * 22]), r"row 1' has no user"),
    "a group without a user": (beside("group", ["a"] * 24), "has a column 'group' but no column 'user'"),
    "no rows": (as_table([]), "holds no record; add"),
}


@pytest.mark.parametrize("name", PARQUET)
def test_parquet(name, tmp_path):
    table, message = PARQUET[name]
    write_parquet(tmp_path / "a.parquet", table)
    with pytest.raises(SfumatoError, match=message) as error:
        open_source(f"parquet:{tmp_path}", owner_key=KEY)
    assert "\n" not in str(error.value)


def test_files_of_another_kind_and_files_that_are_cut(tmp_path):
    path = tmp_path / "a.parquet"
    path.write_bytes(b"something else" * 100)
    with pytest.raises(SfumatoError, match=r"a\.parquet' is not a complete Parquet file"):
        open_source(f"parquet:{path}", owner_key=KEY)
    write_parquet(path, as_table(SOME))
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(SfumatoError, match=r"a\.parquet' is ((not a complete|truncated))"):
        open_source(f"parquet:{path}", owner_key=KEY)


def test_a_row_group_that_memory_is_not_for(tmp_path, monkeypatch):
    write_parquet(tmp_path / "a.parquet", as_table(SOME))
    monkeypatch.setattr(row_groups, "LARGEST_GROUP", 100)
    with pytest.raises(SfumatoError, match=r"a row group of .* must be read as a whole; write it with smaller ones"):
        open_source(f"parquet:{tmp_path}", owner_key=KEY)


def test_without_the_library_one_line_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for ask in (refuse_absent, lambda spec: open_source(spec, owner_key=KEY)):
        with pytest.raises(SfumatoError) as error:
            ask(f"parquet:{tmp_path}/none")
        assert str(error.value) == "parquet: needs pyarrow, which is not installed; pip install 'sfumato[parquet]'"


def test_declared_classes_name_numbers(tmp_path):
    write_parquet(tmp_path / "a.parquet", as_table(SOME, named=False))
    source = open_source(f"parquet:{tmp_path}", owner_key=KEY)
    assert source.classes == ("0", "1")
    named = open_source(f"parquet:{tmp_path}", owner_key=KEY, classes=["ape", "bee"])
    assert np.array_equal(source.train.labels, named.train.labels)
    with pytest.raises(SfumatoError, match=r"the label 1, and 1 classes are named|at least two"):
        open_source(f"parquet:{tmp_path}", owner_key=KEY, classes=["ape"])


def test_several_labels_and_groups(tmp_path):
    columns = {
        "x": pa.array([number % 2 for number in range(24)]),
        "y": pa.array([number % 3 == 0 for number in range(24)]),
        "group": pa.array([one.user[-1] for one in SOME]),
    }
    write_parquet(tmp_path / "a.parquet", as_table(SOME, **columns))
    one = open_source(f"parquet:{tmp_path}", owner_key=KEY, label_columns=["x", "y"], test_fraction=0.4)
    assert one.train.labels.shape == (len(one.train), 2)
    with pytest.raises(SfumatoError, match=r"has no column 'z', only .*; give columns of 0 and 1"):
        open_source(f"parquet:{tmp_path}", owner_key=KEY, label_columns=["x", "z"])
