"""The owner's store: no line is lost, changed or added unnoticed, whoever is killed and whoever writes at once."""

import errno
import json
import multiprocessing
import os

import pytest

from sfumato import SfumatoError, _systems, owner_key, read_budget, set_budget
from sfumato.runs.owner import store, uses
from sfumato.runs.owner.lines import DataIdentity
from sfumato.runs.owner.store import disagreements

A = DataIdentity(("a",))


def runs() -> list[str]:
    return list(uses.earlier_uses(A).runs)


def test_a_line_cut_short_had_not_begun(use, home, lines, write):
    use("x")
    whole = (home / store.FILE).read_bytes()
    use("y")
    (*_, last) = lines()
    for length in (1, 10, len(last) // 2, len(last) - 1):
        (home / store.FILE).write_bytes(whole + b"\n" + last[:length])
        assert runs() == ["x"], last[:length]
    use("z")
    assert runs() == ["x", "z"]


def test_zeros_are_a_line_that_a_power_cut_kept_from_the_file(use, home):
    use("x")
    whole = (home / store.FILE).read_bytes()
    for left in (bytes(40), bytes(30) + b'"use": {}}\n', b'\n{"kind": "ru' + bytes(20)):
        (home / store.FILE).write_bytes(whole + left)
        assert runs() == ["x"]
    use("y")
    assert runs() == ["x", "y"]


def test_a_line_that_was_changed_is_gone_or_is_forged_is_refused(use, lines, write):
    set_budget("faces", epsilon=8, delta=1e-5)
    use("x", budget="faces")
    use("y")
    was = lines()
    assert [json.loads(line)["kind"] for line in was] == ["budget", "codes", "run", "run"]
    cheaper = json.dumps(json.loads(was[2]) | {"cost": 0.0}).encode()
    for changed in (
        [was[0].replace(b'"epsilon": 8', b'"epsilon": 80'), *was[1:]],
        [*was[:2], cheaper, was[3]],
        [*was[:3], was[3].replace(b"8.0", b"9.0")],
        [*was[:2], was[2][:-1], was[3]],
        [was[0], *was[2:]],
        was[1:],
        [was[1], was[0], *was[2:]],
        [*was, was[3]],
        [*was, b"{}"],
        [*was, b"[]"],
        [*was[:2], b"[" * 100_000, was[3]],
        [*was[:2], was[2].replace(b'"run": "x"', b'"run": "x", "run": "y"'), was[3]],
        [*was[:2], was[2].replace(b'"x"', b'"\xff"'), was[3]],
    ):
        write(changed)
        with pytest.raises(SfumatoError, match=r"line \d of the list of runs .* cannot be read"):
            uses.earlier_uses(A)
        with pytest.raises(SfumatoError, match=r"line \d of the list of runs .* cannot be read"):
            use("z")
        assert lines() == changed
    write(was)
    assert runs() == ["x", "y"]


def test_a_store_that_loses_its_end_is_named_and_stays_so(use, home, lines, write):
    for run in "xyz":
        use(run)
    was = lines()
    for left in (3, 2, 0):
        write(was[:left])
        assert next(disagreements()) == f"uses.jsonl lacks {4 - left} of 4 entries"
    write(was[:2])
    for run in "uv":
        use(run)
    assert [*disagreements()] == ["uses.jsonl lacks 2 of 6 entries"]
    write(was)  # the old one lacks what came since
    assert [*disagreements()] == ["uses.jsonl lacks 2 of 6 entries"]


def test_a_budget_is_refused_once_lines_since_it_was_set_are_lost(use, home, lines, write):
    """One of them may have been a reservation in it."""
    set_budget("faces", epsilon=8, delta=1e-5)
    was = lines()
    use("x", budget="faces")
    write(was)
    for refused in (
        lambda: read_budget("faces"),
        lambda: use("y", budget="faces"),
        lambda: set_budget("faces", epsilon=9),
    ):
        with pytest.raises(SfumatoError, match="has lost lines since the budget faces was set"):
            refused()
    use("y")
    set_budget("others", epsilon=8, delta=1e-5)
    use("z", budget="others")
    assert [one.run for one in read_budget("others").reservations] == ["z"], "what it counts came later"
    (home / store.COUNT).unlink()
    with pytest.raises(SfumatoError, match="has lost lines since the budget faces was set"):
        read_budget("faces")


def test_a_count_that_is_lost_is_said_and_stays_said(use, home):
    use("x")
    set_budget("faces", epsilon=8, delta=1e-5)
    (home / store.COUNT).unlink()
    assert [*disagreements()] == ["their count (lists.json) is missing"]
    with pytest.raises(SfumatoError, match="has lost lines since"):
        read_budget("faces")
    use("y")
    (only,) = disagreements()
    assert only.startswith("their count (lists.json) was missing and begun anew on ")
    with pytest.raises(SfumatoError, match="has lost lines since"):
        read_budget("faces")


@pytest.mark.parametrize("first", [True, False])
def test_a_kill_between_a_line_and_the_count_is_no_loss(use, monkeypatch, first):
    if not first:
        use("x")
    with monkeypatch.context() as killed:
        killed.setattr(store.History, "write_count", stop_at(1 + first))
        with pytest.raises(KeyboardInterrupt):
            use("y", count=0)
    assert [*disagreements()] == []
    use("z", count=0)
    assert [*disagreements()] == []


def stop_at(number: int):
    """The count, which a kill prevents at this call."""
    genuine, calls = store.History.write_count, []

    def write_count(self):
        calls.append(self)
        if len(calls) == number:
            raise KeyboardInterrupt
        genuine(self)

    return write_count


def test_a_count_that_was_changed_or_is_of_another_key_is_refused(use, home, lines):
    use("x")
    path, was = home / store.COUNT, lines()
    whole = path.read_bytes()
    for changed in (whole.replace(b'"entries": 2', b'"entries": 1'), b"{}", b"[]", b""):
        path.write_bytes(changed)
        with pytest.raises(SfumatoError, match=r"the count of your lists .* cannot be read"):
            [*disagreements()]
    path.write_bytes(whole)
    (home / "owner.key").write_text("22" * 32)
    with pytest.raises(SfumatoError, match=r"another owner's key.*sfumato doctor --new-key"):
        use("u")
    assert lines() == was, "it is refused before a line is written"


def test_a_lost_key_is_not_made_anew_in_silence_and_by_name_its_lists_are_laid_aside(use, home):
    use("x")
    (home / "owner.key").unlink()
    with pytest.raises(
        SfumatoError, match=r"owner.key is missing, but lists that depend on it are there \(lists.json, uses"
    ):
        owner_key()
    assert not (home / "owner.key").exists()
    aside = store.new_key()
    assert sorted(path.name for path in aside.iterdir()) == ["lists.json", "used-records", "uses.jsonl"]
    use("u")
    assert [*disagreements()] == [f"those of a lost key lie in {aside.name}"]
    with pytest.raises(SfumatoError, match="there are no lists of a lost owner's key"):
        store.new_key()


def test_lists_of_another_key_are_laid_aside_and_the_key_that_is_there_stays(use, home):
    use("x")
    (home / "owner.key").write_text("22" * 32)
    store.new_key()
    assert (home / "owner.key").read_text() == "22" * 32
    assert runs() == []


def begin(use, number, start):
    start.wait(60)
    for count in range(5):
        use(f"{number}-{count}", f"{number}", count=count)


def test_lines_of_processes_that_write_at_once_are_all_there(use):
    """A line that came in between the reading of the last one and the writing of the next would break the chain."""
    context = multiprocessing.get_context("fork")
    start = context.Barrier(4)
    processes = [context.Process(target=begin, args=(use, number, start)) for number in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 4
    found = store.read()
    assert len({line.run for line in found.lines if line.kind == "run"}) == 20
    assert [*disagreements()] == []


@pytest.mark.parametrize("number", ["ENOLCK", "EOPNOTSUPP"])
def test_a_file_system_without_locks_is_refused_before_a_line_is_written(use, home, monkeypatch, number):
    """Two runs that begin at once there would each write the line after the same one, and the list be of no use."""
    fcntl = pytest.importorskip("fcntl")

    def refused(*_):
        raise OSError(getattr(errno, number), os.strerror(getattr(errno, number)))

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", refused)
        with pytest.raises(SfumatoError, match=r"is on a file system without locks \(.*move its directory"):
            use("x")
    monkeypatch.setattr(_systems, "fcntl", None)
    with pytest.raises(SfumatoError, match=r"without locks \(there are no locks on this system\)"):
        use("x")
    assert (home / store.FILE).read_bytes() == b""


def test_a_full_disk_is_said_and_the_run_is_counted_once_when_it_goes_on(use, monkeypatch):
    set_budget("faces", epsilon=8, delta=1e-5)
    with monkeypatch.context() as patch:
        patch.setattr(store, "fsync", lambda _: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left")))
        with pytest.raises(SfumatoError, match=r"No space left.*free some space"):
            use("x", budget="faces")
    use("x", budget="faces")
    assert [one.run for one in read_budget("faces").reservations] == ["x"]


def test_only_the_owner_reads_it(use, home):
    use("x")
    assert {(home / name).stat().st_mode & 0o777 for name in (store.FILE, store.COUNT)} == {0o600}


def test_one_run_has_one_plan(use, whole):
    use("x")
    with pytest.raises(SfumatoError, match="run x is on the list of uses with another plan"):
        use("x", "b", sigma=9.0)
    with store.locked() as held:
        (*_, line) = held.lines
        held.append(type(line)(run="x", use=whole(9.0), data=("a",)))
    with pytest.raises(SfumatoError, match="an earlier line of its run has another plan"):
        uses.earlier_uses(A)
