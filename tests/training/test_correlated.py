"""Runs with correlated noise: the same bytes after a kill, secrets that stay where they belong, what is shown."""

import functools
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file

from sfumato import PrivacyPlan, Run, load, train, verify
from sfumato.privacy.planning.by_name import request_by_names
from sfumato.training import loop
from sfumato.training.step import PrivateStep
from tests.killed import killed

PLAIN = {"learning_rate": 0.5, "threads": 1, "seed": 3, "device": "cpu"}
STEPS = 9
PAIRS = {
    "banded": {"mechanism": "banded"},
    "tree, completed": {"mechanism": "tree", "steps_per_tree": 3, "complete_trees": True},
    "banded by position": {"mechanism": "banded", "bands": 4, "order": "position"},
    "cyclic": {"participation": "cyclic", "groups": 3},
    "drifting": {"drift": 4, "drift_shape": "cosine", "drift_groups": ("1", "2"), "drift_size": 100},
}


@functools.cache
def planned(name: str) -> PrivacyPlan:
    request = request_by_names(examples=200, momentum=0.9, **PAIRS[name])
    return PrivacyPlan.calibrate(
        examples=200, batch_size=50, steps=STEPS, noise_multiplier=1.0, delta=1e-4, **request._asdict()
    )


@pytest.fixture
def trained(spots, tmp_path) -> Callable[..., Run]:
    def run(name: str, where: str, **options) -> Run:
        return train("linear", spots, planned(name), directory=tmp_path / where, **{**PLAIN, **options})

    return run


@pytest.mark.parametrize("name", PAIRS)
def test_a_killed_run_ends_with_the_same_bytes(name, trained, tmp_path, monkeypatch):
    whole = trained(name, "whole")
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)
    for at in (2, 5):  # within a tree and within bands, and again after that
        with killed(PrivateStep, "__call__", lambda _, step, *rest, at=at: step == at):
            trained(name, "killed")
        remembered = [key for key in load_file(tmp_path / "killed" / "checkpoint.safetensors") if "noise." in key]
        assert bool(remembered) == (planned(name).mechanism.buffers(STEPS) > 0)
    resumed = trained(name, "killed")
    for file in ("model.safetensors", "plan.json"):
        assert (resumed.directory / file).read_bytes() == (whole.directory / file).read_bytes()
    for run in (whole, resumed):  # what the noise remembers goes with the key
        assert not {path.name for path in run.directory.iterdir()} & {"dice.key", "checkpoint.safetensors"}
    assert set(load_file(resumed.directory / "model.safetensors")) == set(load(resumed.directory).module.state_dict())
    verdict = verify(resumed.directory)
    assert verdict.holds, verdict


def test_the_statement_names_pair_and_adjacency(trained):
    said = trained("banded by position", "a", seed=None).statement
    assert "under zero-out adjacency" in said.sentence
    assert "by its place in the file, whose order is public" in said.sentence
    assert any("place" in line for line in said.plain)
    assert "under add-or-remove adjacency" in trained("banded", "b").statement.sentence


def test_epsilon_is_shown_as_it_grows(trained):
    run = trained("tree, completed", "run")
    rows = [json.loads(line) for line in Path(run.directory, "metrics.jsonl").read_text().splitlines()]
    spent = [row["epsilon"] for row in rows]
    assert spent == sorted(spent)
    assert spent[0] < spent[-1] == pytest.approx(run.statement.epsilon)
