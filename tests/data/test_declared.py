"""What is declared of data: facts by their names alone, and the parts that they are in.

A source before it is read.
"""

import pickle
from pathlib import Path

import pytest

from sfumato._checks import SfumatoError
from sfumato._choices import choices_of
from sfumato.data import Declared, SourceSpec, open_source


def test_every_fact_is_a_keyword_with_words():
    assert open_source.__doc__ is not None
    words = open_source.__doc__.partition("Args:")[2]
    assert [name for name in choices_of(Declared) if f"\n        {name}: " not in words] == []


def test_facts_and_parts_say_the_same(key):
    declared = Declared(size=5, classes=[str(number) for number in range(10)])
    one, other = (
        open_source("digits", owner_key=key, declared=declared),
        open_source("digits", owner_key=key, **declared.given),
    )
    assert one.fingerprint == other.fingerprint
    assert open_source("digits", owner_key=key, declared=declared, size=6).size == 6
    assert SourceSpec(spec="digits", declared=declared).record() == SourceSpec(spec="digits", **declared.given).record()


def test_what_is_no_fact_is_refused_and_a_near_one_named(key):
    with pytest.raises(SfumatoError, match="bitdepth is not a field of Declared; did you mean bit_depth"):
        open_source("digits", owner_key=key, bitdepth=12)


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
