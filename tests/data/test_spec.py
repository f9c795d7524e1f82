"""A source before it is read."""

import pickle
from pathlib import Path

from sfumato.data import SourceSpec, open_source


def test_it_opens_as_it_was_declared(arrays):
    spec = SourceSpec(spec=arrays, classes=("a", "b", "c", "d"), size=16, public=True)
    source = pickle.loads(pickle.dumps(spec)).open(bytes(32))
    assert (source.classes, source.size, source.public) == (("a", "b", "c", "d"), 16, True)


def test_its_record_reads_the_same_from_anywhere(arrays, monkeypatch, tmp_path):
    path = Path(arrays.partition(":")[2])
    monkeypatch.chdir(path.parent)
    record = SourceSpec(spec=f"npz:{path.name}", test_fraction=0.5, root="sets").record()
    assert record == {"spec": arrays, "root": str(path.parent / "sets"), "test_fraction": 0.5}
    monkeypatch.chdir(tmp_path)
    known = open_source(**record, owner_key=bytes(32))
    assert known.fingerprint == open_source(arrays, owner_key=bytes(32)).fingerprint


def test_users_are_recorded_where_they_are_declared():
    spec = SourceSpec(spec="digits", user_from="p([0-9]+)_", users=218)
    assert spec.record() == {"spec": "digits", "user_from": "p([0-9]+)_", "users": 218}
    assert SourceSpec(spec="digits").record() == {"spec": "digits"}
