"""sfumato plan with mechanisms and participations: what it finds is what train then runs."""

import json
import re
import shlex
from pathlib import Path

import pytest

from sfumato.cli import main

NUMBERS = "--examples 1438 --batch-size 360 --steps 16 --delta 1e-5"
DRIFT = "--drift 8 --drift-size 717 --drift-shape cosine"


def answer(capsys, command: str) -> dict:
    assert main(shlex.split(command)) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("pair", ["--participation cyclic --groups 3", "--order position --bands 5", DRIFT])
def test_the_next_command_runs_the_plan_that_is_shown(pair, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SFUMATO_HOME", str(tmp_path / "home"))
    pair = pair.replace("--bands", "--mechanism banded --bands")
    shown = answer(capsys, f"plan {NUMBERS} --epsilon 3 {pair} --json")
    assert main(shlex.split(f"plan {NUMBERS} --epsilon 3 {pair}")) == 0
    printed = capsys.readouterr()
    assert ("copies of the model" in printed.out) == (pair != DRIFT)
    (line,) = (line for line in printed.err.splitlines() if line.startswith("next: sfumato train SOURCE "))
    options = line.removeprefix("next: sfumato train SOURCE ")
    if pair == DRIFT:
        assert options.endswith(" --drift-groups NAME")
        options = options.replace("NAME", "5 6 7 8 9")
        shown = answer(capsys, f"plan {NUMBERS} --epsilon 3 {pair} --drift-groups 5 6 7 8 9 --json")
        assert re.search(r"^all others +721 examples, each with probability 0 to 0.4993$", printed.out, re.M)
    planned = answer(capsys, f"train digits {options} --dry-run --json")["plan"]
    assert planned["fingerprint"] == shown["fingerprint"]
    for line in ("adjacency +zero-out", "order +place in the file"):
        assert bool(re.search(f"^{line}$", printed.out, re.M)) == ("position" in pair)
    assert ("sampling probability" in printed.out) == ("cyclic" in pair)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--batch-size 30 --steps 5 --epsilon 1 --drift 4 --drift-size 20", "batch-size must be at most 20, got 30"),
        ("--batch-size 9 --steps 5 --epsilon 1 --drift 4 --drift-size 9 --mechanism tree", "covers tree noise under"),
        (
            "--batch-size 9 --steps 5 --epsilon 1 --participation poisson --mechanism tree",
            "no theorem here covers tree",
        ),
    ],
)
def test_what_cannot_be_planned_is_refused(options, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(f"plan --examples 100 {options}")) in (1, 2)
    assert words in capsys.readouterr().err
    assert not list(Path().iterdir())


def test_declared_examples_of_users_are_in_the_next_command(capsys):
    assert main(shlex.split("plan --unit user --users 51 --examples 900 --batch-size 51 --steps 4 --epsilon 8")) == 0
    assert capsys.readouterr().err.rstrip().endswith("--unit user --examples 900")


@pytest.mark.parametrize("options", ["", "--per-user 4", "--per-user 4 --per-step 1"])
def test_a_plan_for_users(call, options):
    command = f"plan --unit user --users 340 {options} --batch-size 30 --steps 20 --noise-multiplier 4"
    found = json.loads(call(f"{command} --json"))
    assert (found["unit"], found["users"]) == ("user", 340)
    assert found.get("per_step") == (1 if "per-step" in options else None)
    assert "examples" not in found
    told = dict(line.split(maxsplit=1) for line in call(command).splitlines() if len(line.split()) == 2)
    assert told["users"] == "340"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--unit user --batch-size 3 --steps 3 --epsilon 3", "--users is missing"),
        ("--unit user --users 9 --batch-size 3 --steps 3", "three of --batch-size, --steps, --noise-multiplier and"),
        ("--examples 9 --per-user 3", "--per-user 3 is for users, but the unit is an example; give --unit user"),
    ],
)
def test_refusals_of_plans_for_users(call, options, words):
    assert words in call(f"plan {options}", status=1 if "per-user" in options else 2)
