"""The benchmark for GPUs: pieces are interrupted in time, go on in the next call, and are not measured twice."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from benchmarks import gpu


def options(place: Path, **more):
    return gpu.Options(place=place, device="cpu", tiny=True, results=place / "results", **more)


def test_a_call_does_what_is_left_and_says_what_it_leaves(tmp_path, monkeypatch, capsys):
    done = []

    def piece(name: str, error: Exception | None = None):
        def measure(call):
            done.append(name)
            if error is not None and done.count(name) == 1:
                raise error
            return {"passed": 1}

        return name, measure

    parts = [piece("a"), piece("b", gpu.TimeIsUpError()), piece("c", ValueError("broken"))]
    monkeypatch.setattr(gpu, "pieces", lambda options: parts)
    assert gpu.main(options(tmp_path)) == 0
    assert "left for the next call: b" in capsys.readouterr().out
    (path,) = (tmp_path / "results").iterdir()
    assert json.loads(path.read_text())["pieces"]["c"] == {"reason": "ValueError: broken"}
    assert gpu.main(options(tmp_path)) == 0
    assert "all done" in capsys.readouterr().out
    assert done == ["a", "b", "c", "b", "c"]
    assert all(row == {"passed": 1} for row in json.loads(path.read_text())["pieces"].values())


def test_a_process_is_interrupted_when_the_time_is_up(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "PATIENCE", 2.0)
    call = gpu.Call(options=options(tmp_path), until=time.monotonic() + 3)
    script = (
        "import pathlib, signal, time\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where tests run in the background\n"
        "try:\n    time.sleep(600)\nexcept KeyboardInterrupt:\n    pathlib.Path('{}').touch()"
    )
    with pytest.raises(gpu.TimeIsUpError):
        call.run("sleeper", [sys.executable, "-c", script.format(tmp_path / "told")])
    assert (tmp_path / "told").exists(), "it can write its last checkpoint"


def test_every_file_of_tests_is_a_piece(tmp_path):
    whole = gpu.Options(place=tmp_path, device="cpu")
    names = [name for name, _ in gpu.pieces(whole)]
    assert names[0] == "smoke", "what shows something soonest comes first"
    assert {"repeatable", "whole step", "heads", "epsilon 1", "epsilon 8", "tests:training/test_step.py"} <= set(names)
    assert any(name.startswith("clipping:") for name in names)
    assert len(names) == len(set(names))


def test_tests_are_counted_by_their_names(tmp_path, monkeypatch):
    """By a file of no imports: those of the package are run beside this one."""
    call = gpu.Call(options=options(tmp_path), until=time.monotonic() + 600)
    (name,) = gpu.tested(call.options)
    assert (gpu.ROOT / "tests" / name).exists()
    file = tmp_path / "tests" / name
    file.parent.mkdir(parents=True)
    file.write_text(
        "import os, pytest\n"
        "@pytest.mark.parametrize('number', range(11))\n"
        "def test_good(number): assert os.environ['SFUMATO_TEST_DEVICE'] == 'cpu'\n"
        "def test_bad(): assert False\n"
    )
    monkeypatch.setattr(gpu, "ROOT", tmp_path)
    found = gpu.tests(call, name)
    assert (found["passed"], found["failed"]) == (11, 1)
    assert found["not passed"] == [f"tests/{name}::test_bad"]


@pytest.mark.slow
@pytest.mark.parametrize("piece", [gpu.repeatable, gpu.head])
def test_the_programs_that_it_starts_run(tmp_path, piece):
    found = piece(gpu.Call(options=options(tmp_path), until=time.monotonic() + 600))
    assert all(value > 0 for value in found.values() if isinstance(value, float))


def test_what_a_program_fails_of_is_the_reason(tmp_path):
    call = gpu.Call(options=options(tmp_path), until=time.monotonic() + 600)
    with pytest.raises(gpu.measuring.CannotError, match="ValueError: no such thing"):
        call.last("one", [sys.executable, "-c", "raise ValueError('no such thing')"])
