"""Layouts as people have them: validation parts, folders within classes, tables with other separators."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from sfumato._checks import SfumatoError
from sfumato.data import open_source

RNG = np.random.default_rng(0)


def pictures(folder, count=4):
    folder.mkdir(parents=True, exist_ok=True)
    for place in range(count):
        Image.fromarray(RNG.integers(0, 256, (8, 8), np.uint8)).save(folder / f"{place}.png")


def opened(spec: str, **facts):
    return open_source(spec, owner_key=bytes(32), **facts)


@pytest.mark.parametrize("name", ["val", "validation"])
def test_a_validation_folder_is_the_test_part_where_there_is_no_other(tmp_path, name):
    for one in ("Train/cat", "Train/dog", f"{name}/cat", f"{name}/dog"):
        pictures(tmp_path / one, 4 if "Train" in one else 3)
    found = opened(f"folder:{tmp_path}")
    assert (len(found.train), len(found.test), found.has_own_split) == (8, 6, True)
    assert found.notes == (f"the validation part of folder {str(tmp_path)!r} is the test part",)
    for one in ("test/cat", "test/dog"):
        pictures(tmp_path / one, 2)
    found = opened(f"folder:{tmp_path}")
    assert (len(found.train), len(found.test)) == (8, 4)
    assert found.notes[0].endswith("is ignored: only train and test are read")


def test_folders_within_a_class_are_read_with_it(tmp_path):
    for one in ("cat/a", "cat/b/c", "dog"):
        pictures(tmp_path / one, 20)
    found = opened(f"folder:{tmp_path}")
    assert np.bincount(np.concatenate([found.train.labels, found.test.labels])).tolist() == [40, 20]
    assert "(cat/a and 2 others); if they are users' folders, give user_from=folder" in found.notes[0].replace("`", "")


@pytest.mark.parametrize("mark", [";", "\t"])
def test_other_separators_and_words_for_splits(tmp_path, mark):
    pictures(tmp_path, 12)
    splits = ["train"] * 8 + ["Valid"] * 4
    lines = [f"{place}.png{mark}{'ab'[place % 2]}{mark}{split}" for place, split in enumerate(splits)]
    (tmp_path / "t.csv").write_text("\n".join([mark.join(["path", "label", "split"]), *lines]))
    found = opened(f"csv:{tmp_path}/t.csv")
    assert (len(found.train), len(found.test)) == (8, 4)
    assert found.notes == (f"the validation part of table '{tmp_path}/t.csv' is the test part",)
    text = (tmp_path / "t.csv").read_text()
    (tmp_path / "t.csv").write_text(text.replace("Valid", "test", 2))
    found = opened(f"csv:{tmp_path}/t.csv")
    assert (len(found.train), len(found.test)) == (8, 2)
    assert found.notes[0].endswith("is ignored: only train and test are read")


def test_columns_of_other_names(tmp_path):
    pictures(tmp_path, 12)
    lines = [f"odd,{place}.png,{'ab'[place % 2]}" for place in range(12)]
    (tmp_path / "t.csv").write_text("\n".join(["path,image_id,class", *lines]))
    found = opened(f"csv:{tmp_path}/t.csv", path_column="image_id", label_column="class", test_fraction=0.4)
    assert (found.classes, len(found.train) + len(found.test)) == (("a", "b"), 12)
    with pytest.raises(SfumatoError, match=r"has no column 'kind', only .*; correct label_column"):
        opened(f"csv:{tmp_path}/t.csv", path_column="image_id", label_column="kind")
    with pytest.raises(SfumatoError, match="path_column is for csv:"):
        opened("digits", path_column="image_id")


def test_a_column_of_another_name_says_whose_image_it_is(tmp_path):
    pictures(tmp_path, 36)
    lines = [f"{place}.png,{'ab'[place % 2]},p{place // 3}" for place in range(36)]
    (tmp_path / "t.csv").write_text("\n".join(["path,label,Patient", *lines]))
    rows = [(tmp_path / f"{place}.png").read_bytes() for place in range(36)]
    columns = {"image": rows, "label": ["a", "b"] * 18, "user": ["one"] * 36}
    columns["Patient"] = [f"p{place // 3}" for place in range(36)]
    pq.write_table(pa.table(columns), tmp_path / "t.parquet", row_group_size=10)
    assert opened(f"csv:{tmp_path}/t.csv").users is None
    for spec in (f"csv:{tmp_path}/t.csv", f"parquet:{tmp_path}/t.parquet"):
        found = opened(spec, user_column="Patient", test_fraction=0.4)
        assert found.users == len(found.train) / 3  # all of a person's images are in one part
        assert len(found.test) % 3 == 0
    with pytest.raises(SfumatoError, match=r"has no column 'who', only .*; correct user_column"):
        opened(f"parquet:{tmp_path}/t.parquet", user_column="who")
    with pytest.raises(SfumatoError, match=r"has no column 'patient', only .*; correct user_column"):
        opened(f"csv:{tmp_path}/t.csv", user_column="patient")
    with pytest.raises(SfumatoError, match="label_column and user_column are both 'label'"):
        opened(f"csv:{tmp_path}/t.csv", label_column="label", user_column="label")
    with pytest.raises(SfumatoError, match=r"user_column is for csv:, parquet: and hf:"):
        opened("digits", user_column="Patient")


def test_a_column_says_which_group_a_record_belongs_to(tmp_path):
    pictures(tmp_path, 36)
    lines = [f"{place}.png,{'ab'[place % 2]},{'xyz'[place % 3]},p{place // 3}" for place in range(36)]
    (tmp_path / "t.csv").write_text("\n".join(["path,label,Site,user", *lines]))
    (tmp_path / "texts.csv").write_text(
        "\n".join(["text,label,Site", *(f"word {place},{'ab'[place % 2]},{'xyz'[place % 3]}" for place in range(36))])
    )
    rows = [(tmp_path / f"{place}.png").read_bytes() for place in range(36)]
    columns = {"image": rows, "label": ["a", "b"] * 18, "Site": ["x", "y", "z"] * 12}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet", row_group_size=10)
    specs = [
        f"{kind}:{tmp_path}/{name}" for kind, name in (("csv", "t.csv"), ("csv", "texts.csv"), ("parquet", "t.parquet"))
    ]
    for spec in specs[1:]:
        plain, found = opened(spec), opened(spec, groups_from="Site")
        assert plain.train.subgroups is None
        assert found.fingerprint == plain.fingerprint
        assert len(found.test.subgroups) == len(found.test)
        both = [(part.labels % 2, part.subgroups) for part in (found.train, found.test)]
        assert sum(map(len, (one for one, _ in both))) == 36
        counts = {name: sum((groups == name).sum() for _, groups in both) for name in "xyz"}
        assert counts == {"x": 12, "y": 12, "z": 12}
    labels = opened(specs[2], groups_from="label")
    assert all((np.array(["a", "b"])[part.labels] == part.subgroups).all() for part in (labels.train, labels.test))
    users = opened(specs[0], groups_from="user", test_fraction=0.5)
    assert users.users is not None, "a column may say both"
    assert {*users.train.subgroups, *users.test.subgroups} == {f"p{place}" for place in range(12)}
    with pytest.raises(SfumatoError, match="groups_from is Site, but figures of groups are for classifiers"):
        opened(specs[2], groups_from="Site", open_set=True)
    with pytest.raises(SfumatoError, match="has no column 'site'"):
        opened(specs[2], groups_from="site")
    (tmp_path / "gap.csv").write_text("text,label,Site\none,a,x\ntwo,b,\n")
    with pytest.raises(SfumatoError, match=r"line 3 of .* has no Site"):
        opened(f"csv:{tmp_path}/gap.csv", groups_from="Site")


def table(tmp_path, lines, first="path,label"):
    (tmp_path / "t.csv").write_text("\n".join([first, *lines]), encoding="utf-8")
    return f"csv:{tmp_path}/t.csv"


def test_tables_as_other_programs_write_them(tmp_path):
    """With a byte order mark, spaces, quotation marks, backslashes, commas in names and absolute paths."""
    pictures(tmp_path / "some images", 12)
    names = [f"some images{mark}{place}.png" for place, mark in enumerate("/\\" * 6)]
    names[3] = str(tmp_path / names[3].replace("\\", "/"))
    lines = [f'"{name}", {"ab"[place % 2]} ' for place, name in enumerate(names)]
    found = opened(table(tmp_path, lines, first="\ufeffpath, label"), test_fraction=0.4)
    assert (found.classes, len(found.train) + len(found.test)) == (("a", "b"), 12)
    lines = [f'"{name}";"{"ab"[place % 2]}"' for place, name in enumerate(names)]
    other = opened(table(tmp_path, lines, first='path;"label, own"'), label_column="label, own", test_fraction=0.4)
    assert other.fingerprint == found.fingerprint


def test_names_of_classes_and_what_systems_leave_in_folders(tmp_path):
    for one in ("K\u00e4tzchen", "\u72ac hund"):
        pictures(tmp_path / "train" / one)
        pictures(tmp_path / "VAL" / one, 3)
    for stray in (
        ".DS_Store",
        "train/.DS_Store",
        "train/K\u00e4tzchen/Thumbs.db",
        "VAL/\u72ac hund/._0.png",
        "README.md",
    ):
        (tmp_path / stray).write_bytes(b"not an image")
    (tmp_path / ".hidden").mkdir()
    found = opened(f"folder:{tmp_path}")
    assert (len(found.train), len(found.test), found.classes) == (8, 6, ("K\u00e4tzchen", "\u72ac hund"))
