"""--mu and --attack-risk in place of --epsilon, in every verb that takes one as a target."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch

from sfumato import finish, private_steps, train
from sfumato.cli import main

SHORT = "--model linear --steps 2 --threads 1 --device cpu"
TRAIN = f"train npz:few.npz {SHORT} --delta 1e-4"


@pytest.fixture(autouse=True)
def few(workplace):
    """Sixty images of 8 x 8 pixels."""
    images = np.random.default_rng(0).integers(0, 255, (60, 8, 8), dtype=np.uint8)
    np.savez(workplace / "few.npz", x=images, y=np.arange(60) % 2)


def circumstances(run: str) -> dict:
    return json.loads((Path(run) / "statement.json").read_text())["circumstances"]


def noise(run: str) -> float:
    return json.loads((Path(run) / "plan.json").read_text())["noise_multiplier"]


@pytest.mark.parametrize(
    ("option", "target"),
    [("--mu 0.8", {"mu": 0.8}), ("--attack-risk 0.02@0.001", {"attack_risk": "0.02@0.001"})],
)
def test_a_run_says_what_was_asked_for_and_its_recipe_asks_again(call, capsys, option, target):
    assert main(shlex.split(f"{TRAIN} {option} --output run")) == 0
    assert "comes to epsilon" in capsys.readouterr().err
    statement = json.loads(Path("run/statement.json").read_text())
    assert statement["circumstances"]["target"] == target
    (line,) = [one for one in statement["plain"] if "was asked to keep" in one]
    assert f"Epsilon is {statement['epsilon']:.3f}"[:-1] in line
    call("verify run")
    call("train run/run.toml --output again")
    assert circumstances("again")["target"] == target
    assert noise("again") == noise("run")


def test_python_asks_alike_and_a_loop_of_ones_own_too(call, tmp_path):
    call(f"{TRAIN} --mu 0.8 --output run")
    run = train("linear", "npz:few.npz", mu=0.8, steps=2, delta=1e-4, directory=tmp_path / "python", threads=1)
    assert run.statement.plan.noise_multiplier == noise("run")
    model = torch.nn.Linear(4, 2)
    data, optimizer = (torch.randn(47, 4), torch.arange(47) % 2), torch.optim.SGD(model.parameters(), lr=0.1)
    how = {"batch_size": 47, "steps": 2, "delta": 1e-4, "directory": tmp_path / "loop"}
    steps = private_steps(model, optimizer, data, mu=0.8, **how)
    for _ in steps:
        pass
    assert steps.statement.plan.noise_multiplier == noise("run")
    assert steps.statement.circumstances.target == run.statement.circumstances.target


def test_an_interrupted_run_goes_on_with_what_was_asked_for(call, monkeypatch):
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("sfumato.training.run.finish.conclude", stop)
        with pytest.raises(KeyboardInterrupt):
            train("linear", "npz:few.npz", attack_risk="0.02@0.001", steps=2, directory="run", threads=1)
    assert finish("run").statement.circumstances.to_dict()["target"] == {"attack_risk": "0.02@0.001"}


def test_a_target_on_the_command_line_replaces_that_of_a_recipe(call):
    Path("r.toml").write_text('source = "npz:few.npz"\nmodel = "linear"\nsteps = 2\nepsilon = 3\n')
    call("train r.toml --mu 0.8 --threads 1 --output mu")
    assert circumstances("mu")["target"] == {"mu": 0.8}
    Path("r.toml").write_text('source = "npz:few.npz"\nmodel = "linear"\nsteps = 2\nattack-risk = "0.02@0.001"\n')
    call("train r.toml --epsilon 3 --threads 1 --output epsilon")
    assert "target" not in circumstances("epsilon")


def test_a_plan_that_is_given_in_full_may_not_exceed_it(capsys):
    full = f"{TRAIN} --batch-size 47 --noise-multiplier 4 --dry-run"
    capsys.readouterr()
    assert main(shlex.split(f"{full} --mu 0.3")) == 1
    assert "give mu 0.354, above mu 0.3" in capsys.readouterr().err
    assert main(shlex.split(f"{full} --mu 0.36")) == 0
    assert "gives mu 0.354, within 0.36" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (f"{TRAIN} --mu 1 --epsilon 1", "--epsilon 1.0 and --mu 1.0 are both given"),
        (f"{TRAIN} --mu 1 --attack-risk 0.1@0.01 --epsilon 1,2", "are all given"),
        (f"{TRAIN} --attack-risk 0.01", "--attack-risk must be a true-positive rate"),
        (f"{TRAIN} --mu 1 --accountant rdp", "leave accountant out"),
        ("plan --examples 9 --batch-size 9 --steps 9 --mu 1 --epsilon 2", "are both given"),
        (
            f"sweep npz:few.npz {SHORT} --search private --vary learning-rate=1,2 --mu 1 --output s",
            "a private selection always plans by Renyi DP, and --mu is given",
        ),
        ("embed npz:few.npz --method untrained --mu 1 --output e", "trains nothing and uses no private data"),
        ("embed npz:few.npz --method fedemb-noiseless --mu 1 --output e --public", "but --mu 1.0 is given"),
    ],
)
def test_what_cannot_be_asked_for_is_refused_by_name(capsys, command, words):
    assert main(shlex.split(command)) in (1, 2)
    assert words in capsys.readouterr().err
    assert {path.name for path in Path().iterdir()} == {"few.npz"}


def test_a_plan_shows_target_and_epsilon(call, capsys):
    found = json.loads(call("plan --examples 5000 --batch-size 500 --steps 100 --attack-risk 0.02@0.001 --json"))
    assert found["target"] == "attack risk 0.02@0.001"
    assert 0.0199 < found["true_positive_rate"] <= 0.02
    assert found["epsilon"] > 1
    assert main(shlex.split("plan --unit user --users 340 --per-user 4 --batch-size 136 --steps 20 --mu 1")) == 0
    assert "--mu 1 --delta" in capsys.readouterr().err
