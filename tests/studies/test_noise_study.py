"""studies/noise_study.py from end to end."""

import json
import shlex
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch

from sfumato import models
from sfumato.cli.options import recipe
from sfumato.data import kinds
from studies import command
from studies.weight_noise.design import Design

ROOT = Path(__file__).resolve().parents[2]
RECIPES = sorted((ROOT / "studies" / "recipes").rglob("*.toml"))
SHAPES = {"MNIST": (1, 28), "CIFAR10": (3, 32)}

SMALL = "--deviations 0,5 --runs 1 --epochs 1 --batch-size 200 --learning-rates 0.1 --threads 1 --device cpu"


def test_it_prints_both_tables_the_rule_and_that_nothing_is_private(study, workplace):
    printed = study(f"noise_study digits --model 'linear lenet-300-100' {SMALL}")
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
    page = Path("runs/digits-noise-study/report.html").read_text("utf-8")
    assert page.count('<svg class="plot"') == 2
    assert "Nothing here is private" in page


def test_a_recipe_says_what_is_studied_and_options_change_it(study, workplace):
    Path("mine.toml").write_text(
        'source = "digits"\nmodel = "linear cnn"\ndeviations = [0, 1]\nruns = 1\nepochs = 1\nbatch-size = 200\n'
        "learning-rates = 0.1\n"
    )
    found = json.loads(study("noise_study mine.toml --model linear --json").splitlines()[-1])
    assert [(cell["model"], cell["deviation"]) for cell in found["cells"]] == [("linear", 0.0), ("linear", 1.0)]
    assert found["run"] == "runs/mine-noise-study"


@pytest.mark.parametrize(
    ("options", "words"),
    [("digits", "--model is missing"), ("spots --model linear", "is private; declare it public (--public)")],
)
def test_refusals_are_one_line(study, workplace, spots_folder, options, words):
    told = study(f"noise_study {options.replace('spots', f'folder:{spots_folder}')}", status=1 + ("missing" in words))
    assert words in told
    assert len(told.strip().splitlines()[-1:]) == 1
    assert not Path("runs").exists()


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_has_the_forms_and_deviations_that_the_paper_has_figures_of(path, monkeypatch):
    monkeypatch.chdir(ROOT)
    about = recipe.table_of(str(path))[recipe.ABOUT]
    program, script, *words = shlex.split(about["command"])
    assert (program, script, words[0]) == ("python", "studies/noise_study.py", path.relative_to(ROOT).as_posix())
    asked = command.parse("noise_study", words)
    asked = replace(asked, **recipe.read(words[0], asked.given, {one.name for one in fields(asked)} - {"what"}))
    design = Design(models=asked.model.split(), **asked.design)
    if path.stem.startswith("figure"):  # drawn alone: curves on a validation part, up to the largest noise
        assert design.validation_fraction
        assert {0, 1, 10} <= set(design.deviations)
    else:
        assert set(design.forms) == set(about["expected"])
        assert set(about["deviations"]) <= set(design.deviations)
        assert {len(row) for row in about["expected"].values()} == {len(about["deviations"])}
    kind, argument = kinds.parse(asked.source)
    for form in design.forms if kind != "csv" else ():  # what builds models of texts is another function
        channels, size = SHAPES[argument]
        with torch.device("meta"):
            models.create(form, classes=10, channels=channels, size=size)
    assert kinds.KINDS[kind].published or asked.public
