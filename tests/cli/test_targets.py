"""--mu and --attack-risk in place of --epsilon, in plan."""

import json
import shlex

from sfumato.cli import main


def test_a_plan_shows_target_and_epsilon(call, capsys):
    found = json.loads(call("plan --examples 500 --batch-size 500 --steps 10 --attack-risk 0.02@0.001 --json"))
    assert found["target"] == "attack risk 0.02@0.001"
    assert 0.0199 < found["true_positive_rate"] <= 0.02
    assert found["epsilon"] > 1
    assert main(shlex.split("plan --unit user --users 34 --per-user 4 --batch-size 34 --steps 4 --mu 1")) == 0
    assert "--noise-multiplier 2.0" in capsys.readouterr().err


def test_a_plan_has_one_target(capsys):
    assert main(shlex.split("plan --examples 9 --batch-size 9 --steps 9 --mu 1 --epsilon 2")) in (1, 2)
    assert "are both given" in capsys.readouterr().err


def test_training_takes_an_epsilon(capsys):
    for verb in ("train", "sweep", "embed"):
        assert main([verb, "digits", "--mu", "1"]) == 2
        assert "unknown option --mu" in capsys.readouterr().err
