"""The ledger: what is written is read back, a torn tail is forgiven, anything else is not."""

from __future__ import annotations

import errno
import itertools
import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato import Ledger, SfumatoError
from sfumato.privacy import ledger as ledgers
from sfumato.privacy.ledger import ORIGIN, read


@pytest.fixture
def path(tmp_path):
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        ledger.append("begin", {"plan": "p"})
        for step in range(4):
            ledger.append("release", {"step": step})
    return tmp_path / "ledger.jsonl"


def test_entries_are_chained_and_read_back(path):
    entries = read(path)
    assert [entry.kind for entry in entries] == ["begin", *["release"] * 4]
    assert [entry.index for entry in entries] == list(range(5))
    assert entries[0].previous == ORIGIN
    assert all(later.previous == earlier.hash for earlier, later in itertools.pairwise(entries))


def test_the_hash_is_what_the_documentation_says(path):
    """SHA-256 of the canonical JSON of [index, kind, body, previous]."""
    import hashlib

    entry = read(path)[2]
    content = json.dumps([2, "release", {"step": 1}, entry.previous], sort_keys=True, separators=(",", ":"))
    assert entry.hash == hashlib.sha256(content.encode()).hexdigest()


def test_opening_again_goes_on_where_it_stopped(path):
    with Ledger(path) as ledger:
        assert len(ledger.entries) == 5
        ledger.append("release", {"step": 4})
    assert [entry.body.get("step") for entry in read(path)] == [None, 0, 1, 2, 3, 4]


@given(cut=st.integers(1, 250))
@settings(max_examples=20, deadline=None)
def test_a_torn_last_line_is_left_out_and_taken_away(tmp_path_factory, cut):
    path = tmp_path_factory.mktemp("torn") / "ledger.jsonl"
    with Ledger(path) as ledger:
        for step in range(3):
            ledger.append("release", {"step": step})
    whole = path.read_bytes()
    last_line = whole.rfind(b"\n", 0, -1) + 1
    path.write_bytes(whole[: max(len(whole) - cut, last_line)])
    assert len(read(path)) == 2
    with Ledger(path) as ledger:
        ledger.append("release", {"step": 2})
    assert path.read_bytes() == whole


@given(position=st.integers(0, 10_000), byte=st.integers(0, 255))
@settings(max_examples=80, deadline=None)
def test_any_changed_byte_is_found(tmp_path_factory, position, byte):
    path = tmp_path_factory.mktemp("edited") / "ledger.jsonl"
    with Ledger(path) as ledger:
        for step in range(3):
            ledger.append("release", {"step": step})
    content = bytearray(path.read_bytes())
    position %= len(content) - 1  # the very last line break is the torn-tail case
    if content[position] == byte:
        return
    content[position] = byte
    path.write_bytes(bytes(content))
    with pytest.raises(SfumatoError, match=r"not a ledger entry|does not follow"):
        read(path)


@pytest.mark.parametrize("edit", ["drop", "swap", "repeat", "forge"])
def test_edits_of_whole_lines_are_found(path, edit):
    lines = path.read_bytes().splitlines(keepends=True)
    if edit == "drop":
        del lines[2]
    elif edit == "swap":
        lines[1], lines[2] = lines[2], lines[1]
    elif edit == "repeat":
        lines.insert(2, lines[2])
    else:
        entry = json.loads(lines[2])
        entry["body"]["step"] = 7
        lines[2] = json.dumps(entry).encode() + b"\n"
    path.write_bytes(b"".join(lines))
    for attempt in (read, Ledger):
        with pytest.raises(SfumatoError, match=r"line \d of ledger.jsonl does not follow"):
            attempt(path)


def test_one_writer_at_a_time(path):
    with Ledger(path), pytest.raises(SfumatoError, match="another process is writing"):
        Ledger(path)
    Ledger(path).close()


def test_a_full_disk_loses_nothing(path, monkeypatch):
    before = path.read_bytes()
    real = os.write

    with Ledger(path) as ledger:
        calls = {"n": 0}

        def first_part_then_full(descriptor, content):
            calls["n"] += 1
            if calls["n"] == 1:
                return real(descriptor, content[:10])
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(ledgers.os, "write", first_part_then_full)
        with pytest.raises(SfumatoError, match=r"cannot be extended .No space left") as error:
            ledger.append("release", {"step": 4})
        assert "the run resumes where it stopped" in error.value.remedy
        assert path.read_bytes() == before
        monkeypatch.setattr(ledgers.os, "write", real)
        ledger.append("release", {"step": 4})
    assert len(read(path)) == 6


def test_missing_and_unwritable_places_are_named(tmp_path):
    with pytest.raises(SfumatoError, match="there is no ledger at"):
        read(tmp_path / "ledger.jsonl")
    with pytest.raises(SfumatoError, match="cannot be written"):
        Ledger(tmp_path / "absent" / "ledger.jsonl")
