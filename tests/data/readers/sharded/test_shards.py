"""Records in shards: what was written is what is read, however it is cut and wherever it stays.

Which files are meant, and which part each is of by its name.

Bad shards, one way after another: each is refused in one line that names it and says what to do.
"""

import importlib.util
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato._checks import SfumatoError
from sfumato.data import FileRecords, Records, cap_per_user, hold_out, open_source
from sfumato.data.decoding import decode
from sfumato.data.kinds import refuse_absent
from sfumato.data.readers import files
from sfumato.data.readers import shards as row_groups
from sfumato.data.readers.shards import ParquetRows, parts_of, shards_of
from sfumato.data.record_users import stored_code
from tests.data.readers.sharded.stored import NAMES, as_table, records, write, write_parquet

KEY = bytes(range(32))


def opened(spec, *, left=False, **declared):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "MEMORY_SHARE", 0 if left else files.MEMORY_SHARE)
        return open_source(spec, owner_key=KEY, **declared)


@settings(max_examples=6, deadline=None)
@given(cuts=st.lists(st.integers(0, 1000), max_size=5), rows=st.integers(1, 9), left=st.booleans())
def test_what_was_written_is_what_is_read_however_it_is_cut(tmp_path_factory, cuts, rows, left):
    some = records(30)
    folder = tmp_path_factory.mktemp("shards")
    whole = opened(write(folder / "one", some, []), size=8, channels=1)
    other = opened(write(folder / "many", some, cuts, rows=rows), left=left, size=8, channels=1)
    assert whole.fingerprint == other.fingerprint
    assert whole.assignment == other.assignment
    assert isinstance(other.train, FileRecords if left else Records)
    by_code = {stored_code(KEY, one.content): one for one in some}
    found = 0
    for part in (other.train, other.test):
        pixels = part.take(slice(None))
        for image, code, label, user in zip(pixels, part.codes, part.labels, part.users, strict=True):
            one = by_code[code[:16].tobytes()]
            assert np.array_equal(image, decode(one.content, "", size=8, channels=1))
            assert (other.classes[label], user) == (NAMES[one.label], one.user)
            found += 1
    assert found == len(some)
    assert other.train.files is None


def test_all_kinds_know_the_same_records_again(tmp_path):
    some = records(40)
    for number, one in enumerate(some):
        path = tmp_path / "folder" / NAMES[one.label] / f"{number:03d}-{one.user}-.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(one.content)
    sources = [opened(write(tmp_path / "parquet", some, [11]), left=True)]
    sources.append(opened(f"folder:{tmp_path / 'folder'}", user_from="-(.*)-"))
    for fact in ("stored_digest", "pixels", "assignment", "size", "channels", "classes", "users"):
        assert len({getattr(source, fact) for source in sources}) == 1, fact
    caps = [cap_per_user(source, KEY, 2) for source in sources]
    assert len({frozenset(map(bytes, one.train.codes)) for one in caps}) == 1
    asides = [hold_out(source, KEY, 0.4)[1] for source in sources]
    assert len({frozenset(map(bytes, one.codes)) for one in asides}) == 1


def test_any_record_is_read_by_itself_by_threads_and_in_another_process(tmp_path, monkeypatch):
    some = records(50)
    write(tmp_path, some, [13, 29])
    shards = sorted(tmp_path.iterdir())
    stored = ParquetRows(shards)
    monkeypatch.setattr(row_groups, "CACHED", 0)
    places = np.random.default_rng(1).integers(0, len(some), 300).tolist()
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(stored.read, places)) == [some[place].content for place in places]
    again = pickle.loads(pickle.dumps(stored))
    assert [again.read(place) for place in places[:20]] == [some[place].content for place in places[:20]]
    assert again.name(20) == stored.name(20)
    assert len(stored._cache) == 1


@pytest.mark.parametrize("test", ["test", "validation"])
def test_names_of_shards_say_the_parts(test, tmp_path):
    some = records(30)
    write(tmp_path / "train", some[:20], [7])
    write(tmp_path / test, some[20:], [])
    source = opened(f"parquet:{tmp_path}", left=True)
    assert (len(source.train), len(source.test), source.has_own_split) == (20, 10, True)
    assert [stored_code(KEY, one.content) for one in some[20:]] == [bytes(code[:16]) for code in source.test.codes]
    write(tmp_path / ("test" if test == "validation" else "dev"), records(8), [])
    three = opened(f"parquet:{tmp_path}", left=True)
    assert (len(three.train), len(three.test)) == ((20, 8) if test == "validation" else (20, 10))
    assert three.notes == (f"the validation part of parquet:{tmp_path} is ignored: only train and test are read",)


def test_broken_records_are_named_or_left_out_and_counted(tmp_path):
    some = records(40)
    some[17] = some[17]._replace(content=some[17].content[:40])
    some[30] = some[30]._replace(content=b"")
    spec = write(tmp_path, some, [25])
    source = opened(spec, skip_unreadable=True, left=True, size=8, channels=1)
    names = ["00000.parquet/row 17", "00001.parquet/row 5"]
    assert [name.removeprefix(f"{tmp_path}/") for name in source.unreadable_files] == names
    assert len(source.train) + len(source.test) == 38
    assert "left_out" in source.facts_read


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
    ("names", "message"), [(["train-0", "more"], "does not say its part"), (["test-0", "dev-0"], "no train part")]
)
def test_parts_that_would_be_guessed_or_lost_are_refused(tmp_path, names, message):
    with pytest.raises(SfumatoError, match=message):
        parts_of([tmp_path / f"{name}.tar" for name in names], "x")


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("none-*.tar", "no file matches .*none-.*; correct the path after parquet:"),
        ("a-0.tar", "shard .*a-0.tar' does not exist"),
        ("../", "holds no file that ends with .none; correct the path"),
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
    "a label that is missing": (labelled([None, *[1] * 23]), r"row 0' has no label; fill it in, or remove"),
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
    with pytest.raises(SfumatoError, match=r"a\.parquet' cannot be read"):
        open_source(f"parquet:{path}", owner_key=KEY)
    write_parquet(path, as_table(SOME))
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(SfumatoError, match=r"a\.parquet' cannot be read"):
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
