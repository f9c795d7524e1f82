"""sfumato aggregate and predict --interval, as they are typed."""

import json
import shlex

import pytest
from PIL import Image

from sfumato.cli import main

QUICK = (
    "--model linear --steps 8 --batch-size 64 --noise-multiplier 4 --optimizer sgd --threads 1 --device cpu --keep 4"
)


@pytest.fixture
def run(workplace, capsys):
    assert main(shlex.split(f"train digits {QUICK} --output run")) == 0
    Image.new("L", (8, 8), 200).save("a.png")
    capsys.readouterr()
    return "run"


def told(capsys):
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_a_model_is_made_by_rule_and_by_a_search_and_used_like_a_run(run, capsys):
    assert main(["aggregate", run, "--json"]) == 0
    by_rule = told(capsys)
    assert by_rule["steps"] == [4, 5, 7, 8][-len(by_rule["steps"]) :]
    assert by_rule["reason"].startswith("by rule")
    assert main(["aggregate", run, "--method", "opa", "--score-on", "digits"]) == 0
    printed, said = capsys.readouterr()
    assert "<- taken" in printed
    assert "nothing more is spent" in printed
    assert "run/aggregate-opa.safetensors" in said
    for made in ("run/aggregate-upa.safetensors", "run/aggregate-opa.safetensors"):
        assert main(["evaluate", made, "digits", "--json"]) == 0
        assert told(capsys)["images"] == 359
        assert main(["predict", made, "a.png", "--json"]) == 0
        assert len(told(capsys)["predictions"][0]["scores"]) == 3
    assert main(["verify", run]) == 0


def test_an_interval_stands_beside_each_label_with_what_it_means(run, capsys):
    assert main(["predict", run, "a.png", "--interval", "0.9"]) == 0
    printed, said = capsys.readouterr()
    assert "  logit " in printed
    assert "lower bound" in said
    assert main(["predict", run, "a.png", "--interval", "0.9", "--json"]) == 0
    found = told(capsys)
    row = found["predictions"][0]
    assert row["logit_low"] < row["logit_high"]
    assert (found["confidence"], found["steps"]) == (0.9, [5, 7, 8])


def test_private_records_cost_an_epsilon(run, capsys):
    assert main(shlex.split("train digits --private --steps 2 --model linear --noise-multiplier 4 --output other")) == 0
    capsys.readouterr()
    assert main(["aggregate", run, "--epsilon", "1"]) == 1
    assert "there is nothing to score on" in capsys.readouterr().err
