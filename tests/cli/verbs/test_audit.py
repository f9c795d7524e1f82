"""sfumato audit."""

import json
from pathlib import Path

import pytest

from sfumato import Noise


def test_a_run_is_audited_and_its_page_shows_it(call, run):
    found = json.loads(call(f"audit {run} --observations 200 --json"))
    assert found["nominal"] >= max(bound["epsilon"] for bound in found["bounds"])
    assert not found["refuted"]
    assert {bound["confidence"] for bound in found["bounds"]} == {0.95}
    assert json.loads(Path(run, "audit-of-step.json").read_text())["bounds"] == found["bounds"]
    assert "in a white box" in Path(run, "report.html").read_text()
    call(f"verify {run}")
    call(f"report {run} --public")
    assert "in a white box" in Path(run, "report-public.html").read_text()


def test_an_audit_that_contradicts_the_promise_ends_with_1(call, run, monkeypatch):
    right = Noise.standard_deviation.fget
    monkeypatch.setattr(Noise, "standard_deviation", property(lambda noise: right(noise) / 40))
    call(f"audit {run} --observations 200", status=1)
    assert json.loads(Path(run, "audit-of-step.json").read_text())["refuted"]
    assert "contradicts the guarantee" in Path(run, "report.html").read_text()


def test_missing_data_of_a_recipe_are_fetched_by_another_verb(call, workplace):
    Path("absent.toml").write_text(f'source = "torchvision:MNIST"\nroot = "{workplace}"\nmodel = "linear"\n')
    told = call("audit absent.toml", status=1)
    assert (
        "; download it with sfumato train absent.toml --download --dry-run, or give a recipe of your own whose" in told
    )
    assert "--root" not in told, "which sfumato audit has not"


def test_a_recipe_is_audited_before_anything_is_spent(call, workplace, quick):
    options = {"model": "linear", "steps": 3, "noise_multiplier": 8.0, "batch_size": 64, "learning_rate": 0.5}
    lines = ['source = "digits"', *(f"{name} = {json.dumps(value)}" for name, value in options.items())]
    Path("mine.toml").write_text("\n".join(lines))
    printed = call("audit mine.toml --observations 200")
    assert "not above the guaranteed" in printed
    assert "could have been shown" in printed
    assert not Path("runs").exists()


def test_correlated_noise_is_checked_without_a_bound(call, workplace, quick):
    options = {"model": "linear", "steps": 3, "noise_multiplier": 8.0, "batch_size": 64, "learning_rate": 0.5}
    lines = [f"{name} = {json.dumps(value)}" for name, value in {**options, "mechanism": "tree"}.items()]
    Path("mine.toml").write_text("\n".join(['source = "digits"', *lines]))
    printed = call("audit mine.toml --observations 60")
    assert "no epsilon is proven for correlated noise; in the first steps the noise is the plan's" in printed


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("audit nowhere", "does not exist"),
        ("audit run --observations 0", "observations must be"),
        ("audit run --epsilon 3", "selects a recipe's row"),
    ],
)
def test_a_refusal_is_one_clear_line(call, run, command, words):
    said = call(command, status=1)
    assert words in said
    assert len(said.strip().splitlines()) == 1
