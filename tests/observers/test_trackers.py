"""Trackers are told what they may know: of private data nothing exact, unless they are on this machine."""

from __future__ import annotations

import importlib
import json
import sys
from types import SimpleNamespace

import pytest

from sfumato import SfumatoError
from sfumato.observers import trackers

ROW = {"step": 5, "learning_rate": 0.3, "epsilon": 1.5, "accuracy": 0.9, "top5": None, "loss": 0.4}
EVERYTHING = {"learning_rate": 0.3, "epsilon": 1.5, "accuracy": 0.9, "loss": 0.4}
OPEN = {"learning_rate": 0.3, "epsilon": 1.5}
MARKED = {**OPEN, "private.accuracy": 0.9, "private.loss": 0.4}


class Client(SimpleNamespace):
    """What both packages are to us."""

    def __init__(self, address: str = "http" + "://tracker"):
        super().__init__(calls=[], get_tracking_uri=lambda: address, active_run=lambda: None)
        for name in ("start_run", "log_params", "log_metrics", "end_run", "log", "finish"):
            setattr(self, name, lambda *given, _name=name, **named: self.calls.append((_name, given, named)))

    def init(self, **named):
        self.calls.append(("init", (), named))
        return self


@pytest.fixture
def run(tmp_path):
    settings = {"run": "0" * 64, "settings": {"model": "lenet", "seed": 7, "trainable": []}, "data": {"kind": "folder"}}
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    return tmp_path


@pytest.fixture
def client(monkeypatch):
    """Both packages, at an address."""

    def at(address: str) -> Client:
        made = Client(address)
        monkeypatch.setitem(sys.modules, "mlflow", made)
        monkeypatch.setitem(sys.modules, "wandb", made)
        return made

    return at


@pytest.mark.parametrize(
    ("address", "public", "exact", "told"),
    [
        ("http" + "://tracker", False, None, OPEN),
        ("databricks", False, None, OPEN),
        ("http" + "://tracker", True, None, EVERYTHING),
        ("http" + "://tracker", False, True, MARKED),
        ("file:///runs", False, None, MARKED),
        ("./mlruns", False, None, MARKED),
        ("sqlite:///mlflow.db", False, None, MARKED),
        ("file:///runs", False, False, OPEN),
        ("postgresql://host/db", False, None, OPEN),
    ],
)
def test_of_private_data_a_remote_tracker_gets_no_exact_figure(client, run, address, public, exact, told):
    seen = client(address)
    tracker = trackers.MLflow(run, public=public, exact=exact)
    tracker.begin(0, 10)
    tracker.scored(ROW)
    tracker.ended()
    (logged,) = [(given, named) for name, given, named in seen.calls if name == "log_metrics"]
    assert logged == ((told,), {"step": 5})
    assert (tracker.note is None) == public
    assert [name for name, _, _ in seen.calls] == ["start_run", "log_params", "log_metrics", "end_run"]


def test_a_seed_is_told_to_nobody(client, run):
    client("file:///runs")
    assert trackers.MLflow(run, public=False).settings == {"data": "folder", "model": "lenet"}


@pytest.mark.parametrize(("mode", "told"), [(None, OPEN), ("online", OPEN), ("offline", MARKED)])
def test_weights_and_biases_likewise(client, run, monkeypatch, mode, told):
    seen = client("")
    if mode is None:
        monkeypatch.delenv("WANDB_MODE", raising=False)
    else:
        monkeypatch.setenv("WANDB_MODE", mode)
    tracker = trackers.WandB(run, public=False)
    tracker.begin(0, 10)
    tracker.scored(ROW)
    tracker.ended()
    assert seen.calls[0] == ("init", (), {"name": tracker._run, "config": {"data": "folder", "model": "lenet"}})
    assert seen.calls[1:] == [("log", (told,), {"step": 5}), ("finish", (), {})]


@pytest.mark.parametrize("name", trackers.TRACKERS)
def test_one_that_is_missing_is_named(monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SfumatoError, match=rf"{name} is not installed; pip install 'sfumato\[{name}\]'"):
        trackers.tracker(name)


def test_another_one_is_refused():
    with pytest.raises(SfumatoError, match="track must be one of mlflow, wandb; got 'mlfow'; did you mean mlflow"):
        trackers.tracker("mlfow")


def test_mlflow_itself_has_the_figures(run, tmp_path, monkeypatch):
    pytest.importorskip("mlflow", reason="mlflow is an extra")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a data base needs packages that mlflow-skinny has not
    mlflow = importlib.import_module("mlflow")
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    tracker = trackers.MLflow(run, public=False)
    tracker.begin(0, 10)
    tracker.scored(ROW)
    kept = mlflow.active_run().info.run_id
    tracker.ended()
    found = mlflow.get_run(kept).data
    assert found.metrics == MARKED
    assert found.params == {"data": "folder", "model": "lenet"}
