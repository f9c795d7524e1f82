"""sfumato export: the folder is named, and refusals take one line."""

from __future__ import annotations

import json

from sfumato.runs.directory import DONE, LEDGER


def test_a_run_is_exported(run, call):
    said = json.loads(call(f"export {run} --to torch-export --json"))
    assert said["export"] == "run/export-torch-export"
    assert said["files"] == ["model.pt2", "preprocessing.json", "README.md"]
    assert said["difference"] <= 1e-5
    assert "export-torch-export" in call(f"export {run} --to torch-export")


def test_an_unfinished_run_is_refused(run, workplace, call):
    (workplace / run / DONE).unlink()
    (workplace / run / LEDGER).unlink()
    assert "is not finished" in call(f"export {run} --to torch-export", status=1)
