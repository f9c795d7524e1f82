"""sfumato export: the folder is named, and refusals take one line."""

import importlib.util
import json
import sys

import sfumato.exporting


def test_a_run_is_exported(run, call):
    said = json.loads(call(f"export {run} --to torch-export --json"))
    assert said["export"] == "run/export-torch-export"
    assert said["files"] == ["model.pt2", "preprocessing.json", "README.md"]
    assert said["difference"] <= 1e-5
    assert "export-torch-export" in call(f"export {run} --to torch-export")


def test_what_is_missing_is_said_before_anything_is_imported_for_it(run, call, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "onnx" else found(name, *rest))
    monkeypatch.setitem(sys.modules, "sfumato.exporting.exporter", None)  # importing it would raise an error
    monkeypatch.delitem(vars(sfumato.exporting), "export", raising=False)  # it may have been imported before
    refused = call(f"export {run}", status=1)
    assert refused.startswith("error: --to onnx needs onnx")
    assert "(not installed); pip install 'sfumato[onnx]'" in refused


def test_an_unknown_option_names_the_few_that_there_are(run, call):
    said = call(f"export {run} --format onnx", status=2)
    assert "unknown option --format; the options are --json, --model, --to, --output" in said
