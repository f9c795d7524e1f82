"""The benchmark of the main job rewrites what is tracked only where it is told to."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from benchmarks.accuracy import main_job

RUN = {"accuracy": 0.9, "epsilon": 3.0, "delta": 1e-5, "seconds": 2.0}


@pytest.mark.parametrize("save", [False, True])
def test_tracked_results_are_written_with_save_alone(save, tmp_path, monkeypatch, capsys):
    result, commands = tmp_path / "accuracy.json", []

    def train(line: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        commands.append(line[3 : line.index("--output")])
        return subprocess.CompletedProcess(line, 0, stdout=json.dumps(RUN))

    result.write_text('{"other": {}}')
    monkeypatch.setattr(main_job, "RESULT", result)
    monkeypatch.setattr(main_job.subprocess, "run", train)
    monkeypatch.setattr(
        sys, "argv", ["main_job.py", *(["--save"] if save else []), "digits", "2", "digits", "--seed", "1"]
    )
    main_job.main()
    assert commands == 2 * [["train", "digits", "--seed", "1"]]
    assert "median 0.9000" in capsys.readouterr().out
    assert list(json.loads(result.read_text())) == (["digits", "other"] if save else ["other"])
