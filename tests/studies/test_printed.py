"""studies/printed.py: a run without a promise, from the command line."""

import json

import pytest

from sfumato.cli import main

CHOSEN = "printed digits --model lenet-300-100,norm=batch --public-data digits"


def test_it_is_trained_and_promises_nothing(study, workplace, capsys):
    asked = f"{CHOSEN} --public-examples 4 --noise-multiplier 8 --batch-size 16 --steps 2 --output run"
    found = json.loads(study(f"{asked} --json"))
    assert found["epsilon"] is None
    assert "does not hold" in found["statement"]
    assert main(["verify", "run"]) == 1
    assert "has no guarantee" in capsys.readouterr().err
    assert "is finished" in study(asked, status=1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--loss sigmoid", "loss is not as in the printed algorithm; leave it out"),
        ("--precision bfloat16", "--precision is given, but the printed algorithm does not use it"),
    ],
)
def test_what_it_does_not_read_is_refused(options, words, workplace, study):
    assert words in study(f"{CHOSEN} --epsilon 1 --steps 2 --batch-size 16 {options}", status=1)
