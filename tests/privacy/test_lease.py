"""One writer at a time where the system's locks do nothing, as on some network file systems."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time

import pytest

from sfumato import Ledger, SfumatoError, _systems
from sfumato.privacy import lease as leases
from sfumato.privacy.ledger import LEASE, read


@pytest.fixture(autouse=True)
def no_locks(monkeypatch):
    """`flock` is away, and nobody waits for long."""
    monkeypatch.setattr(_systems, "fcntl", None)
    monkeypatch.setattr(leases, "BEAT", 0.05)
    monkeypatch.setattr(leases, "WATCH", 0.6)


@pytest.fixture
def path(tmp_path):
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        ledger.append("begin", {"plan": "p"})
        ledger.append("release", {"step": 0})
    return tmp_path / "ledger.jsonl"


def asleep(ledger: Ledger) -> None:
    """Its process gives no more signs, as one that was stopped."""
    ledger._lease._stopped.set()
    ledger._lease._thread.join()


def test_a_lease_ends_with_its_ledger(path):
    with Ledger(path):
        found = json.loads((path.parent / LEASE).read_text())
        assert found["process"] == os.getpid()
        assert (path.parent / LEASE).stat().st_mode & 0o777 == 0o600
    assert not (path.parent / LEASE).exists()


def test_a_holder_that_is_alive_is_not_disturbed(path):
    told = []
    with Ledger(path) as ledger:
        with pytest.raises(SfumatoError, match=f"another process is writing the run in .*: process {os.getpid()} on"):
            Ledger(path, notify=told.append)
        ledger.append("release", {"step": 1})
    assert ["waiting 1 s to see whether it is alive" in line for line in told] == [True]
    assert [entry.body.get("step") for entry in read(path)] == [None, 0, 1]


def test_a_holder_that_sleeps_loses_the_run_and_writes_nothing_more(path):
    told, first = [], Ledger(path)
    asleep(first)
    with Ledger(path, notify=told.append) as second:
        second.append("release", {"step": 1})
        before = path.read_bytes()
        for attempt in (lambda: first.append("release", {"step": 1}), first.sync):
            with pytest.raises(SfumatoError, match=r"has taken over the run in .* from this process") as error:
                attempt()
        assert "nothing is paid twice" in error.value.remedy
        assert path.read_bytes() == before
        first.close()
        assert (path.parent / LEASE).exists()
        second.append("release", {"step": 2})
    assert "taking over the run" in told[-1]
    assert [entry.body.get("step") for entry in read(path)] == [None, 0, 1, 2]


def test_after_the_other_one_has_ended_it_writes_nothing_either(path):
    first = Ledger(path)
    asleep(first)
    Ledger(path).close()
    with pytest.raises(SfumatoError, match="another process has taken over"):
        first.append("release", {"step": 1})


def test_a_line_that_two_have_written_nevertheless_is_one(path, monkeypatch):
    """One of them slept between its look and its line."""
    first = Ledger(path)
    asleep(first)
    with Ledger(path) as second:
        second.append("release", {"step": 1})
        second.append("release", {"step": 2})
        with monkeypatch.context() as patch:
            patch.setattr(Ledger, "_require", lambda ledger: None)
            first.append("release", {"step": 1})
        second.append("release", {"step": 3})
    assert [entry.body.get("step") for entry in read(path)] == [None, 0, 1, 2, 3]


def test_a_ledger_that_somebody_else_has_extended_is_left_alone(path):
    with Ledger(path) as ledger:
        with path.open("ab") as other:
            other.write(b"{}\n")
        with pytest.raises(SfumatoError, match="another process has written to the ledger"):
            ledger.append("release", {"step": 1})


def left_by(process: int, path, **other: str) -> None:
    known = {"process": process, "host": "here", "machine": leases._process_scope(), "token": "t", "beat": "0"}
    (path.parent / LEASE).write_text(json.dumps(known | other))


def test_what_a_killed_process_of_this_machine_left_is_taken_at_once(path, monkeypatch):
    monkeypatch.setattr(leases, "WATCH", 600.0)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    left_by(gone.pid, path)
    told = []
    with Ledger(path, notify=told.append) as ledger:
        ledger.append("release", {"step": 1})
    assert told == []


@pytest.mark.parametrize("content", [None, ""])
def test_what_another_machine_left_is_watched_first(path, content):
    left_by(1, path, machine="another")
    if content is not None:  # it was killed while it wrote it
        (path.parent / LEASE).write_text(content)
    told, began = [], time.monotonic()
    Ledger(path, notify=told.append).close()
    assert time.monotonic() - began >= leases.WATCH
    assert ["waiting" in told[0], "taking over" in told[1]] == [True, True]


def test_a_file_system_without_locks_is_no_refusal(path, monkeypatch):
    class Unable:
        LOCK_EX, LOCK_NB = 2, 4

        def flock(self, *given):
            raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(_systems, "fcntl", Unable())
    with Ledger(path), pytest.raises(SfumatoError, match="another process is writing"):
        Ledger(path)
