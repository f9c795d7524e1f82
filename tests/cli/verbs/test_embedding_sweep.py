"""sfumato sweep with a recipe of sfumato embed: runs by a plan for people, scored by recall of people held out."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from sfumato.training import loop

RECIPE = """
source = "npz:people.npz"
method = "fedemb"
model = "linear"
dimension = 8
steps = 2
batch-size = 6
noise-multiplier = 4
far = 0.3
keep = 2

[sweep]
learning-rate = [0.02, 5.0]
"""
HOW = "--threads 1 --device cpu --validation 0.5"


@pytest.fixture
def people(workplace) -> None:
    """50 people with four images each, and the recipe."""
    generator, users = np.random.default_rng(0), np.repeat(np.arange(50), 4)
    labels = np.where(users < 40, users % 10, 10 + users % 4)
    images = (10 * labels[:, None, None] + generator.integers(0, 60, (200, 8, 8))).astype(np.uint8)
    parts = {"train": users < 40, "test": users >= 40}
    columns = {"x": images, "y": labels, "users": users.astype(str)}
    np.savez(
        "people.npz", **{f"{name}_{part}": columns[name][rows] for name in columns for part, rows in parts.items()}
    )
    Path("e.toml").write_text(RECIPE)


def test_an_uncovered_search_ranks_by_recall_and_its_best_says_so(people, call, capsys, monkeypatch):
    command = f"sweep e.toml {HOW} --search uncovered --output s"
    assert "learning rate 5: 2 steps, batch 6, noise 4" in call(f"{command} --dry-run")
    assert not Path("s").exists()
    found = json.loads(call(f"{command} --json").splitlines()[-1])
    assert sorted(row["learning_rate"] for row in found["rows"]) == [0.02, 5.0]
    recalls = [row["recall"] for row in found["rows"]]
    assert recalls == sorted(recalls, reverse=True)
    assert found["epsilon_of_all"] > found["rows"][0]["epsilon"]
    assert {row["far"] for row in found["rows"]} == {0.3}
    plan = json.loads(Path("s/1/plan.json").read_text())
    assert plan["examples"] == 20, "half of the people, declared as a share"
    assert not Path("s/1/kept").exists()
    told = call(command)
    assert re.search(r"learning rate +recall +epsilon +run", told)
    assert "None of the 2 guarantees covers the search" in told
    assert "sfumato embed s/best.toml" in _noted(command, capsys)
    with monkeypatch.context() as patch:
        patch.setattr(loop, "descend", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt))
        call("embed s/best.toml --threads 1 --device cpu --output best", status=130)
    call("embed best")
    statement = json.loads(Path("best/statement.json").read_text())
    assert statement["circumstances"]["search"]["runs"] == 3
    assert any("search for these settings. It has 3 runs on the same data" in one for one in statement["not_covered"])
    assert len([*Path("best/kept").iterdir()]) == 2


def _noted(command: str, capsys) -> str:
    from sfumato.cli import main

    capsys.readouterr()
    assert main(command.split()) == 0
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        ("--public --score-on digits", "score-on digits counts correct answers"),
        ("--public --views 2", "--views 2 is for classifiers, but the recipe e.toml trains embeddings"),
        ("--public --vary method=central,fedemb", "method central does not use noise_multiplier"),
        ("", "a search on private data costs privacy, but --search is not given"),
    ],
)
def test_what_a_search_for_embeddings_cannot_be_is_refused(people, call, options, refusal):
    told = call(f"sweep e.toml {HOW} {options} --dry-run", status=1)
    assert refusal in told
    assert not Path("runs").exists()


def test_a_search_that_was_cut_goes_on_by_its_own_command(people, call, monkeypatch):
    command = f"sweep e.toml {HOW} --search uncovered --output s"
    with monkeypatch.context() as patch:
        patch.setattr(loop, "descend", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt))
        call(command, status=130)
    assert "the run in s/1 is part of a search; give the command of the search again" in call("embed s/1", status=1)
    call(command)
    assert Path("s/2/done").exists()
