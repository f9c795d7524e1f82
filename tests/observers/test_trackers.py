"""Trackers are told what they may know: of private data nothing exact. They stop no run, and miss nothing for good."""

import importlib
import json
import sys
import time
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from sfumato import PrivacyPlan, SfumatoError, train
from sfumato.cli.options.run_options import ObserverOptions
from sfumato.observers import trackers
from sfumato.observers.observer import MetricsFile, Observer

ROW = {"step": 5, "learning_rate": 0.3, "epsilon": 1.5, "accuracy": 0.9, "top5": None, "loss": 0.4}
EVERYTHING = {"learning_rate": 0.3, "epsilon": 1.5, "accuracy": 0.9, "loss": 0.4}
OPEN = {"learning_rate": 0.3, "epsilon": 1.5}
STATEMENT = {"sentence": "This model is private.", "epsilon": 1.5}


class Client(SimpleNamespace):
    """What both packages are to us: a server with runs, which may be down."""

    def __init__(self):
        super().__init__(calls=[], runs={}, down=False, active_run=lambda: None)
        for name in ("log_params", "log_metrics", "log", "finish", "update_run", "set_tag", "log_dict"):
            setattr(self, name, lambda *given, _name=name, **named: self.asked(_name, *given, **named))
        self.set_terminated = lambda *given, **named: self.asked("set_terminated", *given, **named)
        self.Settings = lambda **given: given
        self.MlflowClient, self.summary = lambda: self, {}

    def asked(self, name, /, *given, **named):
        if self.down:
            raise ConnectionError("nobody answers\nat all")
        self.calls.append((name, given, named))
        if name in ("log_metrics", "log"):
            self.runs.setdefault(named.get("run_id"), []).append(named["step"])

    def start_run(self, **named):
        self.asked("start_run", **named)
        name = f"r{len(self.runs) + 1}"
        self.runs[name] = []
        return nullcontext(SimpleNamespace(info=SimpleNamespace(run_id=name)))

    def init(self, **named):
        self.asked("init", **named)
        return self

    def of(self, name):
        return [(given, named) for called, given, named in self.calls if called == name]


@pytest.fixture
def run(tmp_path):
    settings = {"run": "0" * 64, "settings": {"model": "lenet", "seed": 7, "trainable": []}, "data": {"kind": "folder"}}
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    (tmp_path / "statement.json").write_text(json.dumps(STATEMENT))
    return tmp_path


@pytest.fixture
def client(monkeypatch):
    """Both packages."""

    def at() -> Client:
        made = Client()
        monkeypatch.setitem(sys.modules, "mlflow", made)
        monkeypatch.setitem(sys.modules, "wandb", made)
        return made

    return at


def reach(tracker, row):
    """A row of metrics.jsonl, where trackers find it."""
    file = MetricsFile(tracker._directory)
    file.on_metrics(row)
    tracker.on_metrics(row)


def looked_on(tracker, *rows):
    tracker.on_train_begin(0, 10)
    for row in rows:
        reach(tracker, row)
    tracker.on_train_end()
    tracker.on_finish()


@pytest.mark.parametrize(("public", "told"), [(False, OPEN), (True, EVERYTHING)])
def test_of_private_data_a_tracker_gets_no_exact_figure(client, run, public, told):
    seen = client()
    looked_on(trackers.MLflow(run, public=public), ROW)
    assert seen.of("log_metrics") == [((told,), {"step": 5, "run_id": "r1"})]
    assert seen.of("log_dict") == [(("r1", STATEMENT, "statement.json"), {})]
    assert seen.of("set_tag") == [(("r1", "sentence", STATEMENT["sentence"]), {})]
    assert [name for name, _, _ in seen.calls][-1] == "set_terminated"


def test_settings_and_plan_are_told_and_a_seed_to_nobody(client, run):
    client()
    tracker = trackers.MLflow(run, public=False)
    assert tracker.settings == {"model": "lenet"}
    record = json.loads((run / "settings.json").read_text())
    record["settings"] |= {"pretrained": "/srv/ward-7/run", "public_data": "folder:/srv/ward-8"}
    (run / "settings.json").write_text(json.dumps(record))
    assert "/srv" not in str(tracker.settings)  # no path of this machine
    plan = PrivacyPlan.calibrate(examples=100, batch_size=100, steps=1, noise_multiplier=4.0, delta=1e-5)
    (run / "plan.json").write_text(json.dumps(plan.to_dict()))
    told = tracker.settings
    assert told["plan.epsilon"] == plan.epsilon()
    assert (told["plan.delta"], told["plan.unit"], told["plan.noise_multiplier"]) == (1e-5, "example", 4.0)


def test_weights_and_biases_likewise(client, run):
    seen = client()
    looked_on(tracker := trackers.WandB(run, public=False), ROW)
    ((_, named),) = seen.of("init")
    assert (named["name"], named["config"]) == (tracker.called, {"model": "lenet"})
    assert named["settings"]["console"] == "off"  # what is printed has exact figures
    assert named["reinit"] == "create_new"
    assert seen.of("log") == [((OPEN,), {"step": 5})]
    assert seen.summary["sentence"] == STATEMENT["sentence"]
    assert len(seen.of("finish")) == 1


@pytest.mark.parametrize("name", trackers.TRACKERS)
def test_one_that_is_missing_is_named(monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SfumatoError, match=rf"{name} is not installed; pip install 'sfumato\[{name}\]'"):
        ObserverOptions(track=name).check_observers()


def test_another_one_is_refused():
    with pytest.raises(SfumatoError, match="track must be one of mlflow, wandb; got 'mlfow'; did you mean mlflow"):
        ObserverOptions(track="mlfow").check_observers()


@pytest.mark.parametrize("down", [(0, 3), (2, 99)])
def test_a_tracker_that_fails_stops_nothing_and_gets_what_it_missed(client, run, down):
    seen, reported = client(), []
    tracker = trackers.MLflow(run, public=False, report=reported.append)
    for number in range(6):
        seen.down = down[0] <= number < down[1]
        if number == 0:
            tracker.on_train_begin(0, 10)
        reach(tracker, {**ROW, "step": number + 1})
    seen.down = down[1] == 99
    tracker.on_train_end()
    tracker.on_finish()
    if down[1] == 99:
        assert len(reported) == 2  # when it began to fail, and at the end
        assert not seen.of("set_terminated")
    else:
        assert seen.runs == {"r1": [1, 2, 3, 4, 5, 6]}
        assert len(reported) == 1
    assert "MLflow failed (ConnectionError: nobody answers at all); the run continues" in reported[0]


def test_a_run_that_resumes_is_another_run_there_with_all_rows(client, run):
    seen = client()
    first = trackers.MLflow(run, public=False)
    first.on_train_begin(0, 10)
    for step in (1, 2, 3):
        reach(first, {**ROW, "step": step})
    first.on_interrupt()
    assert seen.of("set_terminated") == [(("r1",), {"status": "KILLED"})]
    (run / "metrics.jsonl").write_text("".join(json.dumps({**ROW, "step": step}) + "\n" for step in (1, 2)))
    second = trackers.MLflow(run, public=False)
    second.on_train_begin(2, 10)
    for step in (3, 4):
        reach(second, {**ROW, "step": step})
    second.on_finish()
    assert seen.runs == {"r1": [1, 2, 3], "r2": [1, 2, 3, 4]}


class Stopping(Observer):
    """Ends the process's work after so many steps, as a kill or an interrupt does."""

    def on_step_end(self, step):
        if step == 2:
            raise KeyboardInterrupt


def test_a_run_that_is_interrupted_leaves_its_tracker_and_comes_back(client, spots, plan, tmp_path):
    seen = client()
    how = {"directory": tmp_path / "run", "learning_rate": 0.5, "threads": 1}
    tracker = trackers.MLflow(tmp_path / "run", public=spots.public)
    with pytest.raises(KeyboardInterrupt):
        train("linear", spots, plan, observers=[tracker, Stopping()], **how)
    assert seen.of("set_terminated") == [(("r1",), {"status": "KILLED"})]
    seen.down = True  # and nothing of it is lost
    run = train("linear", spots, plan, observers=[trackers.MLflow(tmp_path / "run", public=False)], **how)
    assert run.steps == plan.steps


def test_mlflow_itself_has_the_figures(run, tmp_path, monkeypatch):
    pytest.importorskip("mlflow", reason="mlflow is an extra")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a data base takes longer to make
    mlflow = importlib.import_module("mlflow")
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    looked_on(trackers.MLflow(run, public=False), ROW)
    assert mlflow.active_run() is None
    (found,) = mlflow.search_runs(output_format="list")
    assert found.info.status == "FINISHED"
    assert found.data.params == {"model": "lenet"}
    assert found.data.tags["sentence"] == STATEMENT["sentence"]
    files = [path for path in (tmp_path / "mlruns").rglob(f"*{found.info.run_id}*/**/*") if path.is_file()]
    assert any(path.name == "statement.json" for path in files)
    assert found.data.metrics == OPEN
    assert b"accuracy" not in b"".join(str(path).encode() + path.read_bytes() for path in files)


def test_weights_and_biases_itself_gets_neither_what_is_printed_nor_where_the_data_are(run, tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="wandb is an extra")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setattr(sys, "argv", ["sfumato", "train", "folder:patients"])
    tracker = trackers.WandB(run, public=False)
    tracker.on_train_begin(0, 10)
    print("test accuracy 12.34%")
    reach(tracker, ROW)
    tracker.on_finish()
    (folder,) = (tmp_path / "wandb").glob("offline-run-*")
    everything, until = b"", time.monotonic() + 120
    while b"learning_rate" not in everything and time.monotonic() < until:  # its own process may still be writing
        sent = {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.suffix != ".log"}
        everything = b"".join(sent.values())
        time.sleep(0.05)
    assert b"learning_rate" in everything
    assert [word for word in (b"accuracy", b"12.34", b"patients", b"requirements") if word in everything] == []
