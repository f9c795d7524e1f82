"""sfumato noise-study from end to end."""

import json
import shlex
from pathlib import Path

import pytest

from sfumato.cli import main

SMALL = "--deviations 0,5 --runs 1 --epochs 1 --batch-size 200 --learning-rates 0.1 --threads 1 --device cpu"


@pytest.fixture(autouse=True)
def no_page(monkeypatch):
    """Drawn in `tests/report`."""
    monkeypatch.setattr("sfumato.search.weight_noise.study.page_of_noise", lambda study: "<html></html>")


def test_it_prints_both_tables_the_rule_and_that_nothing_is_private(call):
    printed = call(f"noise-study digits --model 'linear lenet-300-100' {SMALL}")
    assert "test accuracy, %" in printed
    assert "slow-down" in printed
    assert "No convergence: most of the runs never exceed" in printed
    assert "which is 10 percentage points above the share of the largest class" in printed
    assert "Nothing here is private" in printed
    (head, linear, lenet) = printed.splitlines()[2:5]
    assert head.split() == ["deviation", "0", "5"]
    assert (linear.split()[0], lenet.split()[0]) == ("linear", "lenet-300-100")
    assert {path.name for path in Path("runs/digits-noise-study").iterdir()} == {
        "noise-study.json",
        "report.html",
        "runs.jsonl",
    }


def test_it_ends_with_one_json_object_and_goes_on(call):
    command = f"noise-study digits --model lenet-300-100 --normalisation none,layer {SMALL} --json"
    first = json.loads(call(command).splitlines()[-1])
    assert first["epsilon"] is None
    assert first["run"] == "runs/digits-noise-study"
    assert [cell["model"] for cell in first["cells"]][::2] == ["lenet-300-100", "lenet-300-100,norm=layer,norm_last=1"]
    lines = Path("runs/digits-noise-study/runs.jsonl").read_text()
    assert json.loads(call(command).splitlines()[-1]) == first
    assert Path("runs/digits-noise-study/runs.jsonl").read_text() == lines


def test_a_recipe_says_what_is_studied_and_options_change_it(call):
    Path("mine.toml").write_text(
        'source = "digits"\nmodel = "linear cnn"\ndeviations = [0, 1]\nruns = 1\nepochs = 1\nbatch-size = 200\n'
        'learning-rates = 0.1\n[about]\ncommand = "sfumato noise-study mine.toml"\n'
    )
    found = json.loads(call("noise-study mine.toml --model linear --json").splitlines()[-1])
    assert [(cell["model"], cell["deviation"]) for cell in found["cells"]] == [("linear", 0.0), ("linear", 1.0)]
    assert found["run"] == "runs/mine-noise-study"
    assert "is for sfumato noise-study" in call("train mine.toml", status=1)


@pytest.mark.parametrize(
    ("options", "status", "words"),
    [
        ("digits", 2, "--model is missing"),
        ("spots --model linear", 1, "is private; declare it public (--public)"),
        ("spots --model linear", 1, "--not-private"),
        ("digits --model linear --deviations 0,x", 2, "--deviations must be a number, or several"),
        ("digits --model linear --normalisation layer,weight", 1, "--normalisation must be one of none, batch"),
        ("digits --model nothing", 1, "model must be one of"),
    ],
)
def test_refusals_are_one_line(spots_folder, capsys, options, status, words):
    assert main(shlex.split(f"noise-study {options.replace('spots', f'folder:{spots_folder}')}")) == status
    printed = capsys.readouterr().err
    assert words in printed
    assert len(printed.strip().splitlines()[-1:]) == 1
    assert not Path("runs").exists()


def test_private_data_are_studied_where_it_is_said_that_nothing_is_private(call, spots_folder):
    command = f"noise-study folder:{spots_folder} --model linear --not-private {SMALL.replace('200', '20')} --json"
    found = json.loads(call(command).splitlines()[-1])
    assert not found["public"]
    assert "The data are private" in found["statement"]


def test_a_recipe_may_not_name_code_as_one_of_its_models(call):
    Path("mine.toml").write_text('source = "digits"\nmodel = "linear somewhere:build"\n')
    assert "trust" in call("noise-study mine.toml", status=1)
