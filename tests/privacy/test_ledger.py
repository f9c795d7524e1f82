"""The ledger: what is written is read back, a torn tail is forgiven, anything else is not."""

import errno
import itertools
import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato import Ledger, PrivacyPlan, SfumatoError, _systems
from sfumato.privacy import ledger as ledgers
from sfumato.privacy.ledger import KINDS, LOST, OPTIONAL, ORIGIN, Entry, Record, lost_steps, read


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
    with pytest.raises(SfumatoError, match=r"ledger\.jsonl does not exist"):
        read(tmp_path / "ledger.jsonl")
    with pytest.raises(SfumatoError, match="cannot be written"):
        Ledger(tmp_path / "absent" / "ledger.jsonl")


@pytest.fixture
def unlocked(monkeypatch):
    """No lock keeps a second writer away."""
    monkeypatch.setattr(Ledger, "_lock", lambda ledger: None)


@pytest.mark.parametrize("system", ["none", "refusing"])
def test_a_run_where_locks_do_nothing_is_refused_by_name(path, monkeypatch, system):
    class Refusing:
        LOCK_EX, LOCK_NB = 2, 4

        def flock(self, *given):
            raise OSError(errno.ENOLCK, "No locks available")

    before = path.read_bytes()
    monkeypatch.setattr(_systems, "fcntl", None if system == "none" else Refusing())
    with pytest.raises(SfumatoError, match=f"the run in {path.parent} is on a file system without locks") as error:
        Ledger(path)
    assert "move its directory" in error.value.remedy
    assert path.read_bytes() == before


def test_a_ledger_that_somebody_else_has_extended_is_left_alone(path):
    with Ledger(path) as ledger:
        with path.open("ab") as other:
            other.write(b"{}\n")
        with pytest.raises(SfumatoError, match="another process has written to the ledger"):
            ledger.append("release", {"step": 4})


def test_a_line_that_two_have_written_nevertheless_is_one(path, unlocked, monkeypatch):
    """One of them slept between its look and its line."""
    with Ledger(path) as first, Ledger(path) as second:
        second.append("release", {"step": 4})
        second.append("release", {"step": 5})
        with monkeypatch.context() as patch:
            patch.setattr(Ledger, "_require", lambda ledger: None)
            first.append("release", {"step": 4})
        second.append("release", {"step": 6})
    assert [entry.body.get("step") for entry in read(path)] == [None, *range(7)]


def test_a_writer_past_the_lock_writes_no_line_after_another_s(path, unlocked):
    """Also where the other one's is as long as its own would be."""
    with Ledger(path) as first, Ledger(path) as second:
        first.append("release", {"step": 4, "release": "a"})
        before = path.read_bytes()
        with pytest.raises(SfumatoError, match="another process has written to the ledger") as error:
            second.append("release", {"step": 4, "release": "b"})
        assert "the run resumes where it stopped" in error.value.remedy
        assert path.read_bytes() == before
        first.append("release", {"step": 5, "release": "a"})
    assert len(read(path)) == 7


def test_whose_line_was_overwritten_learns_of_it_before_it_counts(path, unlocked, monkeypatch):
    """Both have looked before either has written."""
    with Ledger(path) as first, Ledger(path) as second:
        with monkeypatch.context() as patch:
            patch.setattr(Ledger, "_require", lambda ledger: None)
            for ledger, release in ((first, "a"), (second, "b")):
                ledger.append("release", {"step": 4, "release": release})
        for attempt in (first.sync, lambda: first.append("release", {"step": 5, "release": "a"})):
            with pytest.raises(SfumatoError, match="another process has written to the ledger"):
                attempt()
        second.sync()
    assert read(path)[-1].body["release"] == "b"


@pytest.mark.parametrize(
    "line",
    [
        b'{"body":{},"hash":"0","index":0.0,"kind":"begin","previous":"0"}',
        b'{"body":{"step":1e999},"hash":"0","index":0,"kind":"begin","previous":"0"}',
        b'{"body":{"step":NaN},"hash":"0","index":0,"kind":"begin","previous":"0"}',
        b'{"body":' + b'{"a":' * 10**5 + b"0" + b"}" * 10**5 + b',"hash":"0","index":0,"kind":"begin","previous":"0"}',
        b'{"body":' + b'{"a":' * 950 + b"0" + b"}" * 950 + b',"hash":"0","index":0,"kind":"begin","previous":"0"}',
        b'{"body":{"step":' + b"9" * 5000 + b'},"hash":"0","index":0,"kind":"begin","previous":"0"}',
        b'{"body":[],"hash":"0","index":0,"kind":["begin"],"previous":"0"}',
        b'{"body":null,"hash":"0","index":0,"kind":"begin","previous":"0"}',
        b'{"kind":"begin"}',
        b'["body","kind"]',
        b"null",
        b"7",
        b"",
        b"\xff",
    ],
)
def test_what_is_no_line_of_a_chain_is_named(tmp_path, line):
    (tmp_path / "ledger.jsonl").write_bytes(line + b"\n")
    with pytest.raises(SfumatoError, match=r"line 1 of ledger.jsonl (is not a ledger entry|does not follow)"):
        read(tmp_path / "ledger.jsonl")


@pytest.mark.parametrize("spelt", ['{"body": ', '{"body":{"more":1,"step":0},"body":', '{"a":0,"body":'])
def test_a_line_that_is_spelt_in_another_way_is_refused(tmp_path, spelt):
    line = Entry.after(None, "release", {"step": 0}).line().decode()
    (tmp_path / "ledger.jsonl").write_text(line.replace('{"body":', spelt, 1))
    with pytest.raises(SfumatoError, match=r"line 1 of ledger\.jsonl"):
        read(tmp_path / "ledger.jsonl")


# -- what the lines of a run may say -----------------------------------------------------------------------------------

PLAN = PrivacyPlan.calibrate(examples=100, batch_size=100, steps=6, noise_multiplier=9.0, delta=1e-3)
DIGEST, SALTS = "0" * 64, [f"{number:032x}" for number in range(9)]
COMMITMENTS = ("data_commitment", "settings_commitment", "key_check", "record_commitment")
BEGIN = (
    "begin",
    {
        "plan": PLAN.to_dict(),
        "plan_fingerprint": PLAN.fingerprint,
        **dict.fromkeys(COMMITMENTS, DIGEST),
        "record_fields": ["0" * 8],
    },
)
END = ("end", {"steps_taken": 1, "model": DIGEST, "statement": DIGEST})
UNTAKEN = ("end", {**END[1], "steps_taken": 0})
FULL_END = ("end", {**END[1], "kept": {"1": DIGEST}, "figures": DIGEST})
FIGURES = ("figures", {"step": 1, "table": {"classes": 2}})


def opening(step, salt=0):
    return "opening", {"step": step, "salt": SALTS[salt]}


def copied(first, last=5, salt=2):
    return "copy", {"first": first, "last": last, "salt": SALTS[salt]}


def release(step):
    return "release", {"step": step, "plan": PLAN.fingerprint, "release": DIGEST}


def lost(first, last):
    return "lost", {"first": first, "last": last}


def received(number, step):
    return "received", {"round": number, "step": step, "sha256": DIGEST}


def sent(number):
    return "sent", {"round": number, "sha256": DIGEST}


def workers(processes, machines=1):
    return "workers", {"processes": processes, "machines": machines}


def recorded(lines, **known):
    entry, entries = None, []
    for kind, body in lines:
        entries.append(entry := Entry.after(entry, kind, body))
    return Record(PLAN, entries, **known)


SEED, SALT, ROUNDS = {"seeded": True, "rounds": 0}, {"seeded": False, "rounds": 0}, {"seeded": True, "rounds": 3}
ONE_ROUND = [received(0, 0), release(0), release(1), sent(0)]


@pytest.mark.parametrize(
    ("lines", "known"),
    [
        ([], SEED),
        ([release(0), release(1), END], SEED),
        ([opening(0), opening(0, 1), release(0), opening(1, 2), release(1), END], SALT),
        ([UNTAKEN], SALT),
        ([opening(0), release(0), copied(1), opening(1, 1), release(1)], SALT),
        ([release(0), release(1), lost(1, 1), lost(0, 1), release(2), lost(0, 2)], SEED),
        ([workers(2), release(0), workers(8, 2), FIGURES, END], SEED),
        ([release(0), FULL_END], SEED),
        ([*ONE_ROUND, received(1, 2), release(2), received(1, 2), received(1, 3), release(3), sent(1)], ROUNDS),
        ([received(0, 0), opening(0), release(0), opening(1, 1), release(1)], ROUNDS | {"seeded": False}),
    ],
)
def test_what_a_run_writes_is_its_record(lines, known):
    for choices in (known, dict.fromkeys(known)):
        found = recorded([BEGIN, *lines], **choices)
        assert found.paid == len(found.bodies["release"]) == sum(kind == "release" for kind, _ in lines)
        assert [body for kind, body in lines if kind == "opening"] == found.bodies["opening"]


@pytest.mark.parametrize(
    ("lines", "known", "found"),
    [
        ([END], SEED, "steps_taken"),
        ([BEGIN], SEED, "kind"),
        ([UNTAKEN, release(0)], SEED, "kind"),
        ([("noise", {})], SEED, "kind"),
        ([release(number) for number in range(7)], SEED, "step"),
        ([release(0), release(2)], SEED, "step"),
        ([release(0)], SALT, "step"),
        ([opening(0)], SEED, "step"),
        ([opening(1)], SALT, "step"),
        ([opening(0), release(0), opening(0, 1)], SALT, "step"),
        ([opening(0), opening(0)], SALT, "salt"),
        ([opening(0), copied(1)], SALT, "first"),
        ([opening(0), copied(0, 4)], SALT, "last"),
        ([opening(0), copied(0, salt=0)], SALT, "salt"),
        ([opening(0), copied(0), opening(0, 2)], SALT, "salt"),
        ([opening(0), copied(0), release(0)], SALT, "step"),
        ([lost(0, -1)], SEED, "first"),
        ([release(0), lost(0, 1)], SEED, "last"),
        ([release(0), release(1), lost(0, 0)], SEED, "last"),
        ([release(0), lost(-1, 0)], SEED, "first"),
        ([release(0), lost(-(10**12), 0)], SEED, "first"),
        ([release(0), release(1), lost(1, 1), lost(1, 1)], SEED, "first"),
        ([release(0), release(1), lost(0, 1), lost(1, 1)], SEED, "first"),
        ([received(0, 0)], SEED, "round"),
        ([sent(0)], SEED, "round"),
        ([sent(0)], ROUNDS, "round"),
        ([release(0)], ROUNDS, "step"),
        ([received(1, 2)], ROUNDS, "round, step"),
        ([received(0, 0), release(0), sent(0)], ROUNDS, "round"),
        ([received(0, 0), release(0), release(1), release(2)], ROUNDS, "step"),
        ([received(0, 0), release(0), release(1), received(1, 2)], ROUNDS, "round, step"),
        ([*ONE_ROUND, sent(0)], ROUNDS, "round"),
        ([*ONE_ROUND, sent(1)], ROUNDS, "round"),
        ([*ONE_ROUND, received(0, 0)], ROUNDS, "round, step"),
        ([*ONE_ROUND, received(1, 3)], ROUNDS, "step"),
        ([*ONE_ROUND, received(1, 1)], ROUNDS, "step"),
        ([opening(0), received(0, 0), release(0)], ROUNDS | {"seeded": False}, "step"),
        ([release(0), FIGURES, FIGURES], SEED, "table"),
        ([release(0), FIGURES, release(1)], SEED, "step"),
        ([FIGURES], SEED, "step"),
        ([workers(1)], SEED, "processes"),
        ([workers(2, 0)], SEED, "machines"),
    ],
)
def test_no_line_stands_where_no_run_writes_it(lines, known, found):
    recorded([BEGIN, *lines[:-1]], **known)
    with pytest.raises(SfumatoError, match=rf"line {len(lines) + 1} of the ledger, \w+, cannot stand .* its {found};"):
        recorded([BEGIN, *lines], **known)


ODD = (None, True, False, 0.0, 1.0, "", "0", "G" * 64, DIGEST[1:], DIGEST + "\n", -1, 10**30, [], {}, [0], {"0": 0})


@pytest.mark.parametrize("kind", KINDS)
def test_each_field_has_its_values_alone(kind):
    """Exact names, types and forms: nothing else is taken for them."""
    before = [] if kind == "begin" else [BEGIN, received(0, 0), release(0), release(1)]
    samples = (
        BEGIN,
        opening(2),
        copied(2),
        release(2),
        lost(0, 1),
        received(0, 1),
        sent(0),
        workers(2),
        FIGURES,
        FULL_END,
    )
    body, known = dict(samples)[kind], {"rounds": 3 if kind == "sent" else 1}
    recorded([*before, (kind, body)], **known)
    wrong = [{**body, "more": 0}, *({**body, name: odd} for name in body for odd in ODD if name != "table")]
    wrong += [{key: body[key] for key in body if key != name} for name in body.keys() - OPTIONAL.get(kind, set())]
    wrong += [{**body, "plan": {**PLAN.to_dict(), "steps": 6.0}}] if kind == "begin" else []
    for one in wrong:
        if one.get("record_fields") == []:
            continue
        with pytest.raises(SfumatoError, match="cannot stand there"):
            recorded([*before, (kind, one)], **known)


@given(st.lists(st.tuples(st.integers(-9, 12), st.integers(-9, 12)), max_size=6), st.integers(0, 9))
def test_lost_steps_are_those_of_all_ranges(ranges, taken):
    entries = [Entry.after(None, LOST, {"first": first, "last": last}) for first, last in ranges]
    expected = {step for step in range(taken) if any(first <= step <= last for first, last in ranges)}
    assert lost_steps(entries, taken) == expected


def test_lost_steps_take_no_longer_where_the_ranges_are_huge_or_many():
    entries = [Entry.after(None, LOST, {"first": -(10**15), "last": 10**15}) for _ in range(1000)]
    assert lost_steps(entries, 10_000) == {*range(10_000)}
