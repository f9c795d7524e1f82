"""A table of images with several findings each, from the command line: train, evaluate, predict, report."""

import json
import re

import numpy as np
import pytest
from PIL import Image

from sfumato.cli import main

FINDINGS = ("cardiomegaly", "effusion", "nodule")
DECLARED = f"--label-columns {' '.join(FINDINGS)} --size 8 --channels 1"
QUICK = "--noise-multiplier 1 --batch-size 140 --steps 40 --threads 1 --device cpu --seed 1"


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """200 images of 100 patients; a bright part of the image for each finding. Other columns are not looked at."""
    place, generator = tmp_path_factory.mktemp("xrays"), np.random.default_rng(0)
    lines = ["nodule,age,path,effusion,user,cardiomegaly,split"]
    for number in range(200):
        heart, fluid, nodule = (generator.random(3) < (0.4, 0.5, 0.3)).astype(int)
        pixels = generator.integers(0, 60, (8, 8))
        pixels[2:6, 2:6] += 150 * heart
        pixels[6:] += 150 * fluid
        pixels[:2, :3] += 150 * nodule
        Image.fromarray(pixels.astype(np.uint8)).save(place / f"{number}.png")
        part = "train" if number < 140 else "test"
        lines.append(f"{nodule},{number},{number}.png,{fluid},p{number // 2},{heart},{part}")
    # One image with all of them and one with none, to be predicted.
    every = np.full((8, 8), 30, np.uint8)
    Image.fromarray(every).save(place / "none.png")
    every[2:6, 2:6] = every[6:] = every[:2, :3] = 180
    Image.fromarray(every).save(place / "all.png")
    (place / "table.csv").write_text("\n".join(lines) + "\n")
    return place / "table.csv"


@pytest.fixture(scope="module")
def run(table, tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SFUMATO_HOME", str(tmp_path_factory.mktemp("home")))
        patch.setattr("sfumato.report.sections.result.curve", lambda rows, key, levels: "")
        command = f"train csv:{table} {DECLARED} {QUICK} --keep 2 --output {path}"
        assert main(command.split()) == 0
    return path


def test_from_a_table_to_findings(run, table, call):
    evaluation = json.loads((run / "evaluation.json").read_text())
    assert [one["name"] for one in evaluation["labels"]] == list(FINDINGS)
    assert evaluation["mean_auc"] > 0.9
    printed = call(f"evaluate {run} csv:{table}")
    assert "accuracy interval" in printed
    assert "exact match" in printed
    assert all(f"  {name}" in printed for name in FINDINGS)
    call(f"verify {run}")
    page = (run / "report.html").read_text()
    assert all(name in page for name in FINDINGS)
    call(f"report {run} --public")
    public = (run / "report-public.html").read_text()
    assert not any(name in public for name in FINDINGS)


def test_the_threshold_decides(run, table, call):
    fields = [line.split(",") for line in table.read_text().splitlines()[141:]]
    rows = [{"nodule": row[0], "effusion": row[3], "cardiomegaly": row[5]} for row in fields]
    scores = call(f"predict {run} {' '.join(str(table.parent / f'{n}.png') for n in range(140, 200))} --json")
    told = json.loads(scores)["predictions"]
    for threshold in (0.1, 0.5, 0.9):
        found = json.loads(call(f"evaluate {run} csv:{table} --threshold {threshold} --json"))
        assert found["threshold"] == threshold
        assert (found["images"], found["part"], found["public"]) == (60, "test", False)
        for one in found["labels"]:
            own = [said["scores"][one["name"]] for said, row in zip(told, rows, strict=True) if row[one["name"]] == "1"]
            assert one["positives"] == len(own)
            assert one["sensitivity"][0] == pytest.approx(np.mean(np.array(own) >= threshold))


def test_one_finding_as_a_test(run, table, call):
    found = json.loads(call(f"evaluate {run} csv:{table} --positive nodule --prevalence 0.05 --threshold 0.3 --json"))
    (own,) = (one for one in found["labels"] if one["name"] == "nodule")
    assert found["test"]["positive"] == "nodule"
    assert found["test"]["auc"] == own["auc"]
    assert found["test"]["sensitivity"] == own["sensitivity"]
    assert found["test"]["positive_value"] is not None
    assert re.search(r"\n  positive +nodule\n", call(f"evaluate {run} csv:{table} --positive nodule"))


def test_an_image_with_all_and_one_with_none(run, table, call):
    images = f"{table.parent / 'all.png'} {table.parent / 'none.png'}"
    every, nothing = json.loads(call(f"predict {run} {images} --json"))["predictions"]
    assert every["labels"] == list(FINDINGS)
    assert nothing["labels"] == []
    assert list(every["scores"]) == list(FINDINGS)
    first, second = call(f"predict {run} {images}").splitlines()
    assert " + ".join(FINDINGS) in first
    assert "none  (cardiomegaly" in second
    scores = sorted(every["scores"].values())
    between = (scores[0] + scores[1]) / 2
    few = json.loads(call(f"predict {run} {images} --threshold {between} --json"))["predictions"][0]
    assert few["labels"] == [name for name in FINDINGS if every["scores"][name] >= between]
    assert len(few["labels"]) == 2


@pytest.mark.parametrize(
    ("command", "refusal"),
    [
        ("predict RUN IMAGE --top 2", "--top 2 is for models with one class per image"),
        ("evaluate RUN csv:TABLE --label-sets TABLE", ".csv is for models with one class per image"),
        ("evaluate RUN digits", "digits has one label per image, but the model predicts several"),
        ("aggregate RUN --method omv", "the method omv takes a majority of classes"),
        ("train csv:TABLE LABELS QUICK --report-epsilon 0.1", "report_epsilon 0.1 needs one class for each record"),
        ("train csv:TABLE LABELS QUICK --loss softmax", "loss is softmax, but each record of the source has several"),
        ("train digits QUICK --loss multilabel", "loss is multilabel, but each record of the source has one label"),
        (
            "train csv:TABLE LABELS QUICK --drift 5 --drift-groups nodule --participation drifting --batch-size 50",
            "a drift between classes needs one class for each record",
        ),
        ("embed csv:TABLE LABELS --epsilon 8", "a training of embeddings needs one class for each record"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_spent(command, refusal, run, table, call, workplace):
    image = table.parent / "all.png"
    for name, value in (("RUN", run), ("IMAGE", image), ("TABLE", table), ("LABELS", DECLARED), ("QUICK", QUICK)):
        command = command.replace(name, str(value))
    assert refusal in call(command, status=1)
    assert not (workplace / "runs").exists() or not list((workplace / "runs").glob("*/ledger.jsonl"))


def test_a_smaller_set_without_copies_keeps_its_findings(table, call, shown, workplace):
    call(f"dedup {shown} csv:{table} --label-columns {' '.join(FINDINGS)} --output small --threads 1")
    first, second, *_ = (workplace / "small" / "private.csv").read_text().splitlines()
    assert first.split(",")[1:4] == list(FINDINGS)
    nodule, _, _, fluid, _, heart, _ = table.read_text().splitlines()[1].split(",")
    assert second.split(",")[1:4] == [heart, fluid, nodule]
