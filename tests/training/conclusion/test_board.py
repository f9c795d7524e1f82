"""An entry for the public board: what stands in it, and which runs have none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from sfumato import SfumatoError
from sfumato.report import wilson
from sfumato.runs.directory import RunDirectory
from sfumato.training.conclusion.board import entry_of

FIXTURES = Path(__file__).parents[2] / "fixtures" / "0.1.0" / "runs"
PUBLIC = {"test_public": True, "origins": [], "public_examples": 0, "calibrated_on_public": False}
CONFUSION = [[8 if row == column else 1 for column in range(10)] for row in range(10)]
"""170 test images, 80 of them classified correctly."""


@pytest.fixture
def run(tmp_path: Path):
    """A finished run on public data of ten classes; keywords replace parts of its files."""

    def written(*, settings=(), data=(), facts=(), measured=(), **statement) -> RunDirectory:
        said = json.loads((FIXTURES / "poisson" / "statement.json").read_text())
        said |= {"promises": True, "circumstances": PUBLIC | dict(facts), **statement}
        files = {
            "statement": said,
            "settings": {
                "run": 64 * "0",
                "settings": {"model": "dictionary", "pretrained": None, "trainable": [], **dict(settings)},
                "data": {"backbone": None, **dict(data)},
            },
            "evaluation": {
                "accuracy": 80 / 170,
                "classes": [str(number) for number in range(10)],
                "confusion": CONFUSION,
                "weighted_auc": [0.8, 0.7, 0.9],
                **dict(measured),
            },
        }
        for name, content in files.items():
            (tmp_path / f"{name}.json").write_text(json.dumps(content))
        return RunDirectory(tmp_path)

    return written


def test_an_entry_is_what_the_board_s_files_hold(run):
    text = entry_of(run(), "CIFAR-10")
    ((entry,), said) = (yaml.safe_load(text), json.loads((FIXTURES / "poisson" / "statement.json").read_text()))
    assert list(entry) == ["name", "url", "authors", "code", "venue", "venue_date", "claims"]
    assert {entry[name] for name in list(entry)[:-1]} == {"TO BE FILLED IN"}
    (claim,) = entry["claims"]
    assert claim == {
        "model": "dictionary",
        "epsilon": 2.0,
        "delta": claim["delta"],
        "private_accuracy": "47.06%",
        "dp_accountant": "sfumato, privacy loss distribution (PLD)",
    }
    assert float(claim["delta"]) == said["delta"]
    assert "# For https://private-machinelearning.github.io: append to _data/_CIFAR-10/CIFAR10_no.yml\n" in text
    low, high = wilson(80, 170)
    assert f"Accuracy on 170 test images 47.06%, 95% interval {low:.2%} to {high:.2%}" in text
    for line in (said["sentence"], *said["not_covered"]):
        assert line in text


@pytest.mark.parametrize(
    "facts",
    [
        {"origins": ["timm"]},
        {"origins": ["file", "synthetic images"]},
        {"public_examples": 128},
        {"calibrated_on_public": True},
    ],
)
def test_whatever_saw_public_images_is_not_listed_without_public_data(run, facts):
    text = entry_of(run(facts=facts), "CIFAR-10")
    assert "CIFAR10_any.yml" in text
    assert yaml.safe_load(text)[0]["claims"][0]["public_data"] == "TO BE FILLED IN"


def test_synthetic_images_are_no_public_data(run):
    assert "CIFAR10_no.yml" in entry_of(run(facts={"origins": ["synthetic images"]}), "CIFAR-10")


@pytest.mark.parametrize(
    ("settings", "data", "name"),
    [
        ({"model": "head,norm=12.5"}, {"backbone": "timm:vit"}, "timm:vit (Final Layer)"),
        ({"model": "wrn-16-4", "pretrained": "runs/public"}, {}, "wrn-16-4 (Full)"),
        ({"model": "wrn-16-4", "pretrained": "a", "trainable": ["classifier"]}, {}, "wrn-16-4 (Final Layer)"),
        ({"model": "wrn-16-4", "pretrained": "a", "trainable": ["norm", "classifier"]}, {}, "wrn-16-4 (norm and cl"),
        ({"model": "wrn-16-4"}, {}, "wrn-16-4"),
    ],
)
def test_the_model_says_which_layers_were_trained(run, settings, data, name):
    text = entry_of(run(settings=settings, data=data), "CIFAR-10")
    assert yaml.safe_load(text)[0]["claims"][0]["model"].startswith(name)


@pytest.mark.parametrize(
    ("parts", "board", "refusal"),
    [
        ({"promises": False}, "CIFAR-10", "has no guarantee"),
        (
            {"facts": {"test_public": False}},
            "CIFAR-10",
            "train with --public if the data are, or with --report-epsilon",
        ),
        (
            {"facts": {"test_public": False}, "measured": {"classes": list("abcde")}},
            "EyePACS",
            "--public if the data are",
        ),
        ({"measured": {"classes": list("abcde"), "weighted_auc": None}}, "EyePACS", "has no area under a ROC curve"),
        ({}, "ImageNet", "--board-entry ImageNet is for 1000 classes"),
        ({"measured": {"classes": list("abcde")}}, "CheXpert", "is for 5 labels of each image"),
        ({"measured": {"labels": list("abcde")}}, "EyePACS", "is for 5 classes"),
        ({}, "MNIST", "--board-entry must be one of CIFAR-10, ImageNet, CheXpert, EyePACS"),
    ],
)
def test_what_has_no_entry_is_refused(run, parts, board, refusal):
    with pytest.raises(SfumatoError, match=refusal):
        entry_of(run(**parts), board)


def test_a_run_that_measured_nothing_has_no_entry(run):
    unmeasured = run()
    (unmeasured / "evaluation.json").unlink()
    with pytest.raises(SfumatoError, match="has no evaluation"):
        entry_of(unmeasured, "CIFAR-10")
