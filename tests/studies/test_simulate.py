"""studies/simulate.py: its table, its JSON, its next command, and its refusals."""

import json
import shlex
from pathlib import Path

from sfumato.privacy import PrivacyPlan

QUICK = "--model linear --steps 4 --noise-multiplier 16 --batch-size 256 --ema 0 --threads 1 --device cpu --seed 3"
VARIED = "--vary learning-rate=0.001,0.1"


def plan_of(run: str) -> PrivacyPlan:
    return PrivacyPlan.from_dict(json.loads(Path(run, "plan.json").read_text()))


def test_the_json_has_the_simulation_the_full_size_and_the_next_command(study, call):
    command = f"simulate digits {QUICK} {VARIED} --factor 8 --output s"
    found = json.loads(study(f"{command} --confirm 2 --json"))
    assert found["simulate"] == 8
    assert [row["batch_size"] for row in found["rows"]] == [32] * 2
    full, rows = found["full_size"], {row["change"]["learning_rate"]: row for row in found["rows"]}
    assert (full["batch_size"], full["noise_multiplier"], full["steps"]) == (256, 16.0, 4)
    assert all(row["epsilon"] > full["epsilon"] for row in found["rows"])
    assert full["predicted_accuracy"] == rows[found["best"]["learning_rate"]]["accuracy"]
    assert [larger["simulate"] for larger in found["larger_runs"]] == [4, 1]
    assert found["epsilon_of_all"] is None
    assert json.loads(study(f"{command} --confirm 2 --json")) == found, "finished runs are read"
    assert {"sweep.json", "sweep.svg", "best.toml"} <= {path.name for path in Path("s").iterdir()}
    words = shlex.split(found["train"])
    assert words[:3] == ["sfumato", "train", "digits"]
    assert words[words.index("--learning-rate") + 1] == str(found["best"]["learning_rate"])
    call(shlex.join([*words[1:], "--output", "best"]))
    plan = plan_of("best")
    assert (plan.population, plan.expected_batch_size, plan.noise_multiplier) == (1438, 256, 16.0)
    shown = study(command + " --confirm 2")
    assert "Predicted at 1/8, found at full size:" in shown
    assert f"at full size   epsilon {full['epsilon']:.4g}, batch 256, noise 16, 4 steps at delta 1e-05" in shown


def test_a_dry_run_says_what_each_run_is_and_stands_for(study, workplace):
    command = f"simulate digits {QUICK} {VARIED} --factor 8 --dry-run"
    shown = study(command)
    assert "batch 32, noise 2, 4 steps, for epsilon" in shown
    rows = json.loads(study(f"{command} --json"))["runs"]
    assert [row["simulated"]["batch_size"] for row in rows] == [32, 32]
    assert [row["full_size"]["batch_size"] for row in rows] == [256, 256]
    assert not Path("runs").exists()
