"""studies/simulate.py: its table, its JSON, its next command, and its refusals."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pytest

from sfumato.cli.options.choices import stem_of
from sfumato.privacy import PrivacyPlan

QUICK = "--model linear --steps 10 --noise-multiplier 16 --batch-size 256 --ema 0 --threads 1 --device cpu --seed 3"
VARIED = "--vary learning-rate=0.001,0.1,2"


def plan_of(run: str) -> PrivacyPlan:
    return PrivacyPlan.from_dict(json.loads(Path(run, "plan.json").read_text()))


def test_the_json_has_the_simulation_the_full_size_and_the_next_command(study, call):
    command = f"simulate digits {QUICK} {VARIED} --factor 8 --output s"
    found = json.loads(study(f"{command} --confirm 3 --json"))
    assert found["simulate"] == 8
    assert [row["batch_size"] for row in found["rows"]] == [32] * 3
    full, rows = found["full_size"], {row["change"]["learning_rate"]: row for row in found["rows"]}
    assert (full["batch_size"], full["noise_multiplier"], full["steps"]) == (256, 16.0, 10)
    assert all(row["epsilon"] > full["epsilon"] for row in found["rows"])
    assert full["predicted_accuracy"] == rows[found["best"]["learning_rate"]]["accuracy"]
    assert [larger["simulate"] for larger in found["larger_runs"]] == [4, 1]
    assert -1 <= found["larger_runs"][1]["rank_correlation"] <= 1
    assert found["epsilon_of_all"] is None
    assert json.loads(study(f"{command} --confirm 3 --json")) == found, "finished runs are read"
    assert {"sweep.json", "sweep.svg", "best.toml"} <= {path.name for path in Path("s").iterdir()}
    words = shlex.split(found["train"])
    assert words[:3] == ["sfumato", "train", "digits"]
    assert words[words.index("--learning-rate") + 1] == str(found["best"]["learning_rate"])
    call(shlex.join([*words[1:], "--output", "best"]))
    plan = plan_of("best")
    assert (plan.population, plan.expected_batch_size, plan.noise_multiplier) == (1438, 256, 16.0)
    call("train s/best.toml --output again")
    assert plan_of("again") == plan
    shown = study(command + " --confirm 3")
    assert "rank correlation" in shown
    assert "Predicted at 1/8, found at full size:" in shown
    assert f"at full size   epsilon {full['epsilon']:.4g}, batch 256, noise 16, 10 steps at delta 1e-05" in shown


@pytest.mark.slow
def test_the_command_names_the_epsilon_that_is_asked_for_and_that_data_are_public(study, call):
    generator = np.random.default_rng(0)
    images, labels = generator.integers(0, 255, (120, 8, 8), dtype=np.uint8), np.arange(120) % 3
    np.savez("a.npz", x_train=images[:100], y_train=labels[:100], x_test=images[100:], y_test=labels[100:])
    asked = "--public --model linear --steps 2 --batch-size 20 --classes a b c --threads 1"
    found = json.loads(study(f"simulate npz:a.npz {asked} --vary ema=0,0.9 --factor 2 --json"))
    assert found["full_size"]["epsilon"] == pytest.approx(3, abs=0.01)
    assert found["larger_runs"] == [], "half of this is full size"
    words = shlex.split(found["train"])
    assert words[words.index("--epsilon") + 1] == "3.0"
    assert words[words.index("--classes") + 1 :][:3] == ["a", "b", "c"]
    assert "--public" in words
    call(shlex.join(words[1:]))
    assert Path("runs", stem_of("npz:a.npz"), "statement.json").is_file()


def test_a_dry_run_says_what_each_run_is_and_stands_for(study, workplace):
    command = f"simulate digits {QUICK} {VARIED} --factor 8 --dry-run"
    shown = study(command)
    assert "batch 32, noise 2, 10 steps, for epsilon" in shown
    rows = json.loads(study(f"{command} --json"))["runs"]
    assert [row["simulated"]["batch_size"] for row in rows] == [32, 32, 32]
    assert [row["full_size"]["batch_size"] for row in rows] == [256, 256, 256]
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--private --factor 8", "digits is private, and a simulated run spends far more"),
        ("--factor 1", "--factor must be at least 2"),
        ("--factor 500", "give at most 256"),
        ("--factor 8 --confirm -1", "--confirm must be at least 1"),
    ],
)
def test_refusals(study, workplace, options, words):
    assert words in study(f"simulate digits {QUICK} {VARIED} {options}", status=1)
    assert not Path("runs").exists()
