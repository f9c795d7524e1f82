"""The power fails at any moment of a run: nothing that was promised is lost, and nothing is paid twice."""

import os
import time

import pytest

from benchmarks.shared import disk
from benchmarks.trust import power
from sfumato import _files
from sfumato.cli import main
from sfumato.privacy import Ledger, ledger
from sfumato.randomness import owner_key
from sfumato.report.sections import result
from sfumato.training import loop
from sfumato.training.conclusion import run_report
from tests.killed import killed


@pytest.fixture
def as_it_was(monkeypatch):
    """What the drill changes is put back."""
    for module, name in ((result, "curve"), (run_report, "true_positive_rates"), (loop, "CHECKPOINT_SECONDS")):
        monkeypatch.setattr(module, name, getattr(module, name))
    monkeypatch.setenv("SFUMATO_HOME", os.environ.get("SFUMATO_HOME", ""))


@pytest.mark.parametrize("kind", power.KINDS)
def test_a_run_whose_power_fails_at_any_moment_goes_on(kind, as_it_was, tmp_path):
    """All states that may be left are looked at, and some gone on from; benchmarks/trust/power.py does so from all."""
    found = power.drill(tmp_path, kind, mixtures=2, tried=3)
    assert found["broken"] == {}
    assert found["states"] > 100
    assert found["gone_on_from"] >= 3


def left(root, write):
    """All that may be on the disk at the end, by path, of what `write` did not sync."""
    with disk.recorded(root) as trace:
        write()
    return [{name: content for name, content, _ in state.files} for state in disk.states(trace, len(trace.events))]


def test_what_is_written_whole_is_there_after_it_returned(tmp_path):
    deep = tmp_path / "deep" / "deeper"

    def write():
        _files.make_directory(deep)
        _files.write(deep / "file", b"content")

    assert all(state == {"deep/deeper/file": b"content"} for state in left(tmp_path, write))


def test_the_owners_key_is_there_after_it_was_made(tmp_path):
    assert all("home/owner.key" in state for state in left(tmp_path, lambda: owner_key(tmp_path / "home")))


def test_the_disk_loses_what_was_not_synced(tmp_path):
    """What the drill rests on: each kind of loss is among the states."""

    def write():
        (tmp_path / "file").write_bytes(b"abcd")
        os.close(os.open(tmp_path / "other", os.O_CREAT | os.O_WRONLY))

    found = left(tmp_path, write)
    assert {state.get("file") for state in found} >= {None, b"", b"abcd", b"ab", b"abc", bytes(4), b"ab\0\0"}
    assert any("other" in state and "file" not in state for state in found)


def test_zeros_in_a_ledger_are_what_a_power_cut_left(tmp_path):
    path = tmp_path / "ledger.jsonl"
    with Ledger(path) as written:
        lines = [written.append("release", {"step": step}).line() for step in range(3)]
    path.write_bytes(lines[0] + bytes(len(lines[1])) + lines[2])
    assert [entry.body["step"] for entry in ledger.read(path)] == [0]
    with Ledger(path) as written:
        written.append("release", {"step": 1})
    assert path.read_bytes() == lines[0] + lines[1]


def test_the_clock_goes_back_a_day_at_each_look(tmp_path, monkeypatch):
    """Dates decide nothing: neither the clock nor the files' own."""
    command = "train digits --noise-multiplier 8 --model linear --steps 3 --batch-size 32 --seed 7 --device cpu"
    assert main([*command.split(), "--output", str(tmp_path / "straight")]) == 0
    now, looks = time.time(), iter(range(10**6))
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: now - 86_400 * next(looks))
        patch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)
        with killed(loop, "descend", call=3):
            main([*command.split(), "--output", str(tmp_path / "back")])
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: now - 86_400 * next(looks))
        for place, path in enumerate(sorted((tmp_path / "back").iterdir())):
            os.utime(path, (now + 10**7 * (-1) ** place, now + 10**7 * (-1) ** place))
        assert main(["train", str(tmp_path / "back")]) == 0
    for name in ("model.safetensors", "statement.json", "metrics.jsonl"):
        assert (tmp_path / "back" / name).read_bytes() == (tmp_path / "straight" / name).read_bytes()
