"""A run that ends before its last step: from Python, and by an observer."""

import json
import shutil

import pytest
import torch
from torch import nn

import sfumato
from sfumato import PrivacyPlan, SfumatoError, Stop, finish, train, verify
from sfumato.observers import Observer
from sfumato.observers.progress import NoProgress
from sfumato.privacy import ledger
from sfumato.runs.directory import file_hash
from sfumato.training import loop
from sfumato.training.workers import Workers

PLAN = PrivacyPlan.calibrate(examples=200, batch_size=20, steps=6, noise_multiplier=8.0, delta=1e-3)


def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 4))


def trained(directory, source, model=None, **choices):
    given = {"learning_rate": 0.1, "seed": 5, "threads": 1, **choices}
    return train(model or module(), source, PLAN, directory=directory, **given)


class Leaves(Observer):
    """Ends a run when it is told something."""

    def __init__(self, when, at=3):
        self.when, self.at, self.told = when, at, []

    def on_train_begin(self, step, steps):
        self._note("begin", step)

    def on_step_end(self, step):
        self._note("stepped", step)

    def on_metrics(self, row):
        self._note("scored", row["step"])

    def on_train_end(self):
        self.told.append("ended")

    def _note(self, what, step):
        self.told.append((what, step))
        if (what, step) == (self.when, self.at):
            raise Stop


@pytest.fixture
def unfinished(arrays, tmp_path, monkeypatch, killed_at):
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)
    with killed_at(4):
        trained(tmp_path / "run", arrays)
    return tmp_path / "run"


def test_a_run_of_objects_is_ended_with_these(unfinished):
    run = finish(unfinished, model=module())
    assert run.steps == run.statement.circumstances.steps_taken == 3
    assert run.statement.epsilon == PLAN.epsilon() > PLAN.epsilon(steps=3)
    assert any("choice to end the run after 3 steps" in line for line in run.statement.not_covered)
    assert verify(unfinished).holds
    assert run.load(module()).predict([]).shape == (0, 4)
    with pytest.raises(SfumatoError, match=r"is finished; evaluate it \(sfumato evaluate"):
        finish(unfinished, model=module())


def test_what_it_began_with_is_asked_for(unfinished):
    missing = r"only its own code can build: model; run that code again, .* sfumato.finish\('.*', model=...\)"
    with pytest.raises(SfumatoError, match=missing):
        finish(unfinished)
    with pytest.raises(SfumatoError, match="does not fit the model or the optimizer"):
        finish(unfinished, model=nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, 4)))
    assert (unfinished / "dice.key").exists()


def test_data_from_python_are_asked_for(spots, tmp_path, monkeypatch, killed_at):
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)
    with killed_at(3):
        trained(tmp_path / "run", spots, "linear")
    with pytest.raises(SfumatoError, match=r"can build: source; .* sfumato.finish\('.*', source=...\)"):
        finish(tmp_path / "run")
    with pytest.raises(SfumatoError, match=r"the run in .* was started without your own model; leave it out"):
        finish(tmp_path / "run", source=spots, model=module())
    assert finish(tmp_path / "run", source=spots).steps == 2


def test_arrays_are_opened_as_the_run_opened_them(tmp_path, monkeypatch, killed_at):
    generator = torch.Generator().manual_seed(0)
    data = (torch.randint(0, 256, (100, 1, 4, 4), generator=generator, dtype=torch.uint8), torch.arange(100) % 2)
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)
    with killed_at(2):
        given = {"noise_multiplier": 8.0, "batch_size": 20, "steps": 3, "threads": 1}
        train("linear", data, directory=tmp_path / "run", **given)
    assert finish(tmp_path / "run", source=data).steps == 1


@pytest.mark.parametrize("when", ["stepped", "scored"])
def test_an_observer_ends_a_run(arrays, tmp_path, when):
    leaves, other = Leaves(when), Leaves("never")
    run = trained(tmp_path / "run", arrays, observers=[leaves, other])
    assert run.steps == run.statement.circumstances.steps_taken == 3
    assert run.statement.epsilon == PLAN.epsilon() > PLAN.epsilon(steps=3)
    assert any("choice to end the run after 3 steps" in line for line in run.statement.not_covered)
    assert leaves.told == other.told
    assert leaves.told[-2:] == [("stepped", 3), "ended"]
    kinds = [entry.kind for entry in ledger.read(run.directory / "ledger.jsonl")]
    assert kinds == ["begin", *["release"] * 3, "end"]
    assert verify(run.directory).holds
    assert not (run.directory / "dice.key").exists()


def test_it_leaves_what_finish_leaves(arrays, tmp_path, monkeypatch, killed_at):
    stopped = trained(tmp_path / "stopped", arrays, observers=[Leaves("stepped")])
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)
    with killed_at(4):
        trained(tmp_path / "cut", arrays)
    ended = finish(tmp_path / "cut", model=module())
    for name in ("model.safetensors", "statement.json", "evaluation.json"):
        assert file_hash(stopped.directory / name) == file_hash(ended.directory / name), name


def test_figures_of_a_run_that_was_ended_are_those_of_its_last_step(arrays, tmp_path, monkeypatch):
    """It was measured after the second step, and ends after the third."""
    monkeypatch.setattr(loop, "EVALUATIONS", 3)
    heard: list[str] = []
    progress = NoProgress()
    monkeypatch.setattr(progress, "report", heard.append)
    run = trained(tmp_path / "run", arrays, observers=[Leaves("stepped")], averaging=None, progress=progress)
    assert "an observer ended the run after 3 of 6 steps; its statement gives the epsilon of the whole plan" in heard
    written = json.loads((run.directory / "evaluation.json").read_text())
    rows = [json.loads(line) for line in (run.directory / "metrics.jsonl").read_text().splitlines()]
    assert [(row["step"], row["epsilon"]) for row in rows] == [(2, PLAN.epsilon(steps=2))]
    assert rows[0]["epsilon"] < run.statement.epsilon == PLAN.epsilon()
    assert written["loss"] != pytest.approx(rows[0]["loss"], rel=1e-6)


def test_one_that_ends_it_at_its_beginning_has_no_further_step_taken(arrays, tmp_path, monkeypatch, killed_at):
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)
    with killed_at(4):
        trained(tmp_path / "run", arrays)
    run = trained(tmp_path / "run", arrays, observers=[Leaves("begin")])
    assert run.steps == 3
    assert verify(run.directory).holds


def test_a_kill_while_it_ends_is_made_good(arrays, tmp_path, monkeypatch):
    """The checkpoint is that of the last step, so the same observer finds the run where it left it."""
    with monkeypatch.context() as patch:
        patch.setattr("sfumato.training.run.finish.conclude", _killed)
        with pytest.raises(KeyboardInterrupt):
            trained(tmp_path / "run", arrays, observers=[Leaves("stepped")])
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    assert finish(tmp_path / "copy", model=module()).steps == 3
    assert trained(tmp_path / "run", arrays).steps == 6


def _killed(*_, **__):
    raise KeyboardInterrupt


def test_workers_hear_of_it(arrays, tmp_path, monkeypatch):
    """Those that don't lead have no observers, and end by what the leader says."""
    said = []
    monkeypatch.setattr(Workers, "broadcast", lambda self, message: said.append(message) or dict(message))
    trained(tmp_path / "run", arrays, observers=[Leaves("stepped", 2)])
    assert [message["stop"] for message in said if "stop" in message] == [False, True]
    assert sfumato.Stop is Stop
