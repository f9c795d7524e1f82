"""Published figures and a test for one class, as they are typed."""

import json
import shlex

import pytest

from sfumato.cli import main
from sfumato.training.conclusion import finish


def told(capsys):
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_figures_are_printed_published_and_resumed(quick, capsys, monkeypatch):

    class StopError(Exception):
        pass

    def stopping(*_):
        raise StopError

    with monkeypatch.context() as patch:
        patch.setattr(finish, "close", stopping)
        with pytest.raises(StopError):
            main(shlex.split(f"train digits --private --report-epsilon 4 {quick} --output run"))
    capsys.readouterr()
    assert main(["train", "run", "--dry-run", "--json"]) == 0
    assert told(capsys)["figures"]["epsilon"] == 4.0
    assert main(["train", "run"]) == 0  # what was asked for is in the run
    printed = capsys.readouterr().out
    assert "may be published" in printed
    (accuracy,) = [line for line in printed.splitlines() if line.startswith("test accuracy")]
    assert accuracy.endswith("(measured on private data: for you only)")
    assert "(4.0, 0)-differentially private for each single test example" in printed
    assert main(["verify", "run"]) == 0
    assert main(["report", "run", "--public"]) == 0
    with open("run/report-public.html") as page:
        assert "figures that may be published" in page.read()


def test_what_it_is_refused_for(quick, call):
    assert "the data are public; leave it out" in call(f"train digits --report-epsilon 1 {quick}", status=1)
    several = call(f"train digits --private --report-epsilon 1 --seeds 2 {quick}", status=1)
    assert "--report-epsilon is 1, but there are several runs" in several
    assert "--report-epsilon" in call(f"sweep digits --report-epsilon 1 {quick}", status=2)


def test_a_test_for_one_class_is_measured(digits_run, call):
    command = f"evaluate {digits_run} digits"
    found = json.loads(call(f"{command} --positive 3 --threshold 0.4 --prevalence 0.02 --json"))["test"]
    assert (found["positive"], found["threshold"], found["prevalence"]) == ("3", 0.4, 0.02)
    assert found["positives"] + found["negatives"] == 359
    assert found["auc"][1] < found["auc"][0] <= found["auc"][2] <= 1
    printed = call(f"{command} --positive 3 --prevalence 0.02")
    for name in ("auc", "sensitivity", "specificity", "positive_value", "prevalence"):
        assert f"\n  {name} " in printed
    assert "if positive" not in call(f"{command} --positive 3")


def test_the_roc_curve_of_a_class_is_drawn_for_its_owner(digits_run, call, tmp_path):
    place = tmp_path / "roc.svg"
    found = json.loads(call(f"evaluate {digits_run} digits --positive 3 --plot {place} --json"))["test"]
    drawn = place.read_text()
    assert drawn.startswith("<?xml")
    assert f"3  {100 * found['auc'][0]:.1f}%" in drawn
    assert place.stat().st_mode & 0o777 == 0o600


def test_a_test_that_cannot_be_is_refused_at_once(digits_run, call):
    command = f"evaluate {digits_run} digits"
    assert "--positive must be one of 0, 1" in call(f"{command} --positive cat", status=1)
    assert "--prevalence 0.1 needs a class to test for" in call(f"{command} --prevalence 0.1", status=1)
    assert "--plot a.svg needs a class to test for" in call(f"{command} --plot a.svg", status=1)
    assert "--plot must be a .svg file in a folder that exists, got 'a.png'" in call(
        f"{command} --positive 3 --plot a.png", status=1
    )
    assert "--prevalence must lie strictly between 0 and 1" in call(f"{command} --positive 3 --prevalence 2", status=1)


def test_a_budget_that_cannot_be_is_refused_before_the_data_are_read(call, monkeypatch):
    def read(*_, **__):
        raise AssertionError

    monkeypatch.setattr("sfumato.training.trial.open_with_progress", read)
    for option in ("--epsilon 0", "--steps 0", "--batch-size 0"):
        assert f"{option.split()[0]} must be" in call(f"train digits {option}", status=1)
