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


def test_what_cannot_be_exported_is_refused_in_one_line(run, workplace, call):
    refused = call(f"export {run} --to timm", status=1)
    assert refused.count("\n") == 1
    assert "--to onnx" in refused
    (workplace / run / DONE).unlink()
    (workplace / run / LEDGER).unlink()
    assert "is not finished" in call(f"export {run} --to torch-export", status=1)
