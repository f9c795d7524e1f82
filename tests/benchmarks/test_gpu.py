"""The benchmark for GPUs: pieces are interrupted in time, go on in the next call, and are not measured twice."""

from __future__ import annotations

import json
from pathlib import Path

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


def test_every_file_of_tests_is_a_piece(tmp_path):
    whole = gpu.Options(place=tmp_path, device="cpu")
    names = [name for name, _ in gpu.pieces(whole)]
    assert names[0] == "smoke", "what shows something soonest comes first"
    assert {"repeatable", "whole step", "heads", "epsilon 1", "epsilon 8", "tests:training/test_step.py"} <= set(names)
    assert any(name.startswith("clipping:") for name in names)
    assert len(names) == len(set(names))
