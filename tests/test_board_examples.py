"""The converters of CheXpert and EyePACS on small files in the published layouts, from the files to a run."""

import csv
import json
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sfumato.cli import main

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
LABELS = ("Cardiomegaly", "Edema", "Consolidation", "Atelectasis", "Pleural Effusion")
FINDINGS = ("No Finding", "Enlarged Cardiomediastinum", *LABELS, "Support Devices")
QUICK = "--steps 5 --noise-multiplier 2 --threads 1 --device cpu --model linear --batch-size 20 --public --output run"


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Run a command in an empty folder; gives its standard output, or its error if it must be refused."""
    monkeypatch.setenv("SFUMATO_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)

    def call(command: str, *, status: int = 0) -> str:
        capsys.readouterr()
        assert main(shlex.split(command)) == status
        printed = capsys.readouterr()
        return printed.err if status else printed.out

    return call


def convert(name: str, *words: object) -> Path:
    """The table that an example writes."""
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), *map(str, words)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return Path(done.stdout.strip())


def draw(path: Path, bright: int) -> None:
    """A small JPEG, as bright as its label."""
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(len(str(path)) + bright).integers(0, 40, (16, 16))
    Image.fromarray((noise + 40 * bright).astype(np.uint8)).save(path)


def write(path: Path, header: tuple[str, ...], rows: list[tuple[object, ...]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])


@pytest.fixture
def chexpert(tmp_path: Path) -> Path:
    """Of each patient a frontal and a lateral image, with labels of all four kinds, and a test set without facts of
    the patient."""
    folder, header = tmp_path / "CheXpert-v1.0-small", ("Path", "Sex", "Age", "Frontal/Lateral", "AP/PA", *FINDINGS)
    values, rows = ("1.0", "0.0", "-1.0", ""), {"train": [], "valid": [], "test": []}
    for number, split in enumerate([*["train"] * 20, *["valid"] * 12, *["test"] * 12]):
        for view in ("view1_frontal", "view2_lateral"):
            inside = f"{split}/patient{number:05d}/study1/{view}.jpg"
            draw(folder / inside, number % 4)
            # In valid.csv and in the test set all is known.
            kinds = 4 if split == "train" else 2
            known = [values[number // (place % 3 + 1) % kinds] for place in range(len(FINDINGS))]
            facts = () if split == "test" else ("Female", 68, view[6:].capitalize(), "AP")
            rows[split].append((inside if split == "test" else f"CheXpert-v1.0-small/{inside}", *facts, *known))
    for split in ("train", "valid"):
        write(folder / f"{split}.csv", header, rows[split])
    write(folder / "test_labels.csv", ("Path", *FINDINGS), rows["test"])
    return folder


@pytest.fixture
def eyepacs(tmp_path: Path) -> Path:
    """Two eyes of each patient, 20 to train on and 15 to test on."""
    folder = tmp_path / "eyepacs"
    eyes = [(number, side, number % 5) for number in range(35) for side in ("left", "right")]
    train, test = eyes[:40], eyes[40:]
    for split, part in (("train", train), ("test", test)):
        for number, side, grade in part:
            draw(folder / split / f"{number}_{side}.jpeg", grade)
    write(folder / "trainLabels.csv", ("image", "level"), [(f"{n}_{side}", grade) for n, side, grade in train])
    usage = [(f"{n}_{side}", grade, ("Public", "Private")[n % 2]) for n, side, grade in test]
    write(folder / "retinopathy_solution.csv", ("image", "level", "Usage"), usage)
    return folder


def rows_of(table: Path) -> list[dict[str, str]]:
    with table.open(newline="") as file:
        return list(csv.DictReader(file))


def test_uncertain_labels_follow_the_rule_of_the_board(chexpert: Path):
    rows = rows_of(convert("chexpert", chexpert))
    with (chexpert / "train.csv").open(newline="") as file:
        for row, published in zip(rows, csv.DictReader(file), strict=False):
            for name in LABELS:
                present = ("1.0", "-1.0") if name in ("Edema", "Atelectasis") else ("1.0",)
                assert row[name] == str(int(published[name] in present))
            assert published["Path"] == f"CheXpert-v1.0-small/{row['path']}"
            assert row["user"] in row["path"]
    assert [row["split"] for row in rows] == 40 * ["train"] + 24 * ["test"]
    tested = rows_of(convert("chexpert", chexpert, "test_labels.csv"))[40:]
    assert all(row["path"].startswith("test/") for row in tested)


def test_a_path_that_is_none_of_chexpert_is_refused(chexpert: Path):
    (chexpert / "train.csv").write_text("Path,Edema\nimages/1.jpg,1.0\n")
    command = [sys.executable, str(EXAMPLES / "chexpert.py"), str(chexpert)]
    assert "line 2 of" in subprocess.run(command, check=False, capture_output=True, text=True).stderr


def test_chexpert_from_its_files_to_a_run(chexpert: Path, call):
    table = convert("chexpert", chexpert)
    labels = " ".join(f"'{name}'" for name in LABELS)
    call(f"train 'csv:{table}' --label-columns {labels} --unit user --size 16 --channels 1 {QUICK}")
    measured = json.loads(call(f"evaluate run 'csv:{table}' --json"))
    assert [one["name"] for one in measured["labels"]] == list(LABELS)
    assert measured["images"] == 24
    assert "weighted auc" in call(f"evaluate run 'csv:{table}'")
    call("verify run")


def test_eyepacs_from_its_files_to_a_run(eyepacs: Path, call):
    table = convert("eyepacs", eyepacs)
    assert rows_of(table)[1] == {"path": "train/0_right.jpeg", "label": "0", "user": "0", "split": "train"}
    call(f"train csv:{table} --unit user --size 16 --channels 1 {QUICK}")
    measured = json.loads(call(f"evaluate run csv:{table} --json"))
    assert measured["images"] == 30
    call("verify run")
