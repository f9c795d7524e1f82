"""Records in shards: what was written is what is read, however it is cut and wherever it stays."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.data import FileRecords, Records, cap_per_user, hold_out, open_source
from sfumato.data.decoding import decode
from sfumato.data.readers import files
from sfumato.data.readers import shards as row_groups
from sfumato.data.readers.shards import ParquetRows
from sfumato.data.record_users import stored_code
from tests.data.readers.sharded.stored import NAMES, records, write

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
