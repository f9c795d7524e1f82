"""A benchmark in pieces: they are interrupted in time, go on in the next call, and are not measured twice."""

import json
import sys
import time
from pathlib import Path

import pytest

from benchmarks import full_size
from benchmarks.shared import pieces


def options(place: Path, **more):
    return pieces.Options(place=place, device="cpu", tiny=True, results=place / "results", **more)


def test_a_call_does_what_is_left_and_says_what_it_leaves(tmp_path, capsys):
    done = []

    def piece(name: str, error: Exception | None = None):
        def measure(call):
            done.append(name)
            if error is not None and done.count(name) == 1:
                raise error
            return {"passed": 1}

        return name, measure

    parts = [piece("a"), piece("b", pieces.TimeIsUpError()), piece("c", ValueError("broken"))]
    assert pieces.measure(options(tmp_path), parts, "some") == 0
    assert "left for the next call: b" in capsys.readouterr().out
    (path,) = (tmp_path / "results").iterdir()
    assert json.loads(path.read_text())["pieces"]["c"] == {"reason": "ValueError: broken"}
    assert pieces.measure(options(tmp_path), parts, "some") == 0
    assert "all done" in capsys.readouterr().out
    assert done == ["a", "b", "c", "b", "c"]
    assert all(row == {"passed": 1} for row in json.loads(path.read_text())["pieces"].values())


def test_pieces_that_all_fail_are_an_error_and_no_result(tmp_path, capsys):
    def broken(call):
        raise ValueError("broken")

    assert pieces.measure(options(tmp_path), [("a", broken), ("b", broken)], "some") == 1
    said = capsys.readouterr().out
    assert f"error: 2 failed: a, b; their logs are in {tmp_path}" in said
    assert "all done" not in said
    assert not (tmp_path / "results").exists()
    assert pieces.measure(options(tmp_path), [("a", broken), ("c", lambda call: {"passed": 1})], "some") == 0
    assert "error: 1 failed: a" in capsys.readouterr().out
    assert pieces.measure(options(tmp_path), [("a", broken)], "some") == 1


def test_relative_paths_are_those_of_the_call_wherever_processes_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call = pieces.Call(options=options(Path("here")), until=time.monotonic() + 600)
    call.options.place.mkdir()
    call.run("one", [sys.executable, "-c", f"open({str(call.options.place / 'file')!r}, 'w')"])
    assert (tmp_path / "here" / "file").exists()
    assert call.options.results == tmp_path / "here" / "results"
    assert full_size.OptionsWithData(place=Path("here"), data=Path("data")).data == tmp_path / "data"


def test_a_process_is_interrupted_when_the_time_is_up(tmp_path, monkeypatch):
    monkeypatch.setattr(pieces, "PATIENCE", 2.0)
    call = pieces.Call(options=options(tmp_path), until=time.monotonic() + 3)
    script = (
        "import pathlib, signal, time\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where tests run in the background\n"
        "try:\n    time.sleep(600)\nexcept KeyboardInterrupt:\n    pathlib.Path('{}').touch()"
    )
    with pytest.raises(pieces.TimeIsUpError):
        call.run("sleeper", [sys.executable, "-c", script.format(tmp_path / "told")])
    assert (tmp_path / "told").exists(), "it can write its last checkpoint"
