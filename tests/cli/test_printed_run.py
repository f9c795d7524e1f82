"""sfumato train --normalisation printed-2020: a run without a promise, from the command line."""

from __future__ import annotations

import json

import pytest

from sfumato.cli import main

CHOSEN = ("train", "digits", "--model", "lenet-300-100,norm=batch", "--normalisation", "printed-2020")
PUBLIC = ("--public-data", "digits", "--public-examples", "4")


def test_it_is_trained_and_promises_nothing(tmp_path, capsys):
    run = str(tmp_path / "run")
    asked = (*CHOSEN, *PUBLIC, "--noise-multiplier", "8", "--batch-size", "16", "--steps", "2", "--output", run)
    assert main([*asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["epsilon"] is None
    assert "does not hold" in found["statement"]
    assert main(["verify", run]) == 1
    assert "promises nothing" in capsys.readouterr().err
    assert main([*asked]) == 1
    assert "is finished" in capsys.readouterr().err


def test_what_promises_refuses_it(tmp_path, capsys):
    for further in (("--epsilon", "1,2"), ("--epsilon", "1", "--seeds", "2"), ("--epsilon", "1", "--dry-run")):
        assert main([*CHOSEN, *PUBLIC, *further, "--output", str(tmp_path / "run")]) == 1
        assert "promises nothing, and this training is to promise something" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--loss sigmoid", "loss is not as in the algorithm that normalisation printed-2020 reproduces"),
        ("--precision bfloat16", "--precision is given, and --normalisation printed-2020 does not read it"),
        ("--audit 4", "--audit is given"),
        ("--report-epsilon 1", "--report-epsilon is given"),
        ("--keep 2", "--keep is given"),
        ("--micro-batch 8", "--micro-batch is given"),
    ],
)
def test_what_it_does_not_read_is_refused(options, words, workplace, call):
    printed = call(" ".join([*CHOSEN, "--public-data digits --epsilon 1 --steps 2 --batch-size 16", options]), status=1)
    assert words in printed
