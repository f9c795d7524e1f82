"""Whose image each one is goes from the command line to the split, the record, the model, a cache and a smaller set."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sfumato.cli import main
from sfumato.data import Source, open_source
from sfumato.randomness import owner_key

RULE = "p([0-9]+)_"


@pytest.fixture
def patients(workplace) -> str:
    """A private folder of two classes, with four images of each of thirty patients."""
    generator = np.random.default_rng(0)
    for name, shade in (("dense", 180), ("thin", 40)):
        Path("patients", name).mkdir(parents=True)
        for number in range(60):
            pixels = shade + generator.integers(0, 60, (8, 8))
            Image.fromarray(pixels.astype(np.uint8)).save(f"patients/{name}/p{number // 2}_{number}.png")
    return "folder:patients"


def opened(spec: str, **options) -> Source:
    return open_source(spec, owner_key=owner_key(), **options)


def test_a_model_is_measured_on_users_that_it_has_not_met(call, patients, quick):
    call(f"train {patients} {quick} --user-from '{RULE}' --users 25 --output run")
    request = json.loads(Path("run/settings.json").read_text())["request"]["source"]
    assert (request["user_from"], request["users"]) == (RULE, 25)
    by_user, by_image = (len(opened(patients, user_from=rule).test) for rule in (RULE, None))
    assert by_user != by_image
    told = call(f"evaluate run {patients}", status=1)
    assert f"was trained with --user-from {RULE!r}, and another split would separate these users; give the same" in told
    for further, images in ((f"--user-from '{RULE}'", by_user), ("--part all", 120)):
        assert json.loads(call(f"evaluate run {patients} {further} --json"))["images"] == images
    call(f"train {patients} {quick} --output other")
    assert set(json.loads(Path("other/settings.json").read_text())["request"]["source"]) == {"spec"}
    assert json.loads(call(f"evaluate other {patients} --json"))["images"] == by_image


def test_an_unfinished_run_is_taken_up_with_its_users(call, patients, quick, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("sfumato.training.run.take_steps", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        call(f"train {patients} {quick} --user-from '{RULE}' --output run", status=130)
    told = call(f"train {patients} {quick} --output run", status=1)
    assert "the run in run differs in its" in told
    call("train run")


def test_a_smaller_set_knows_its_users(call, patients, shown):
    call(f"dedup {shown} folder:patients --limit 0.001 --output d --user-from '{RULE}'")
    before, after = opened(patients, user_from=RULE), opened("csv:d/private.csv")
    assert (len(after.train), len(after.test)) == (len(before.train), len(before.test))
    assert after.train.users.tolist() == before.train.users.tolist()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--user-from 'p([0-9+'", "--user-from p([0-9+ is not a regular expression (unterminated character set"),
        ("--user-from 'p([0-3]_)'", "does not name its user by --user-from p([0-3]_); correct the pattern"),
        ("--user-from folder", "is in too few folders; move it to the folder of its class or user"),
        ("--users 20", "--users 20 is declared, but folder:patients does not name the user of each record; give a"),
        ("--users 0", "users must be at least 1, got 0"),
    ],
)
def test_refusals(call, patients, options, words):
    assert words in call(f"train {patients} --dry-run {options}", status=1)


def test_rules_are_for_folders(call):
    told = call(f"train digits --dry-run --user-from {RULE!r}", status=1)
    assert f"--user-from {RULE} is for folder:, but the source is digits; leave it out; tables have a column" in told


@pytest.fixture
def by_patient(patients) -> str:
    """The same images as PATIENT/CLASS/IMAGE."""
    for file in Path("patients").glob("*/*.png"):
        place = Path("by patient", file.name.partition("_")[0], file.parent.name)
        place.mkdir(parents=True, exist_ok=True)
        file.rename(place / file.name)
    return "'folder:by patient'"


def test_folders_of_patients_are_asked_about_and_each_patient_is_promised_to(call, by_patient, quick, capsys):
    told = call(f"train {by_patient} {quick} --unit user --output run --dry-run", status=1)
    assert "does not name the user of each record; give a table with the column user" in told
    for further in ("", "--user-from folder"):
        told = call(f"train {by_patient} {quick} {further} --output run --dry-run", status=1)
        assert told.splitlines()[-1].endswith(
            "hold folders of the same names ('dense', 'thin'), so either level may be the classes; if these names are "
            "the classes, give --class-from folder:2, and with it --user-from folder and --unit user if each outer "
            "folder is one person's; if the outer folders are the classes, give --class-from folder:1"
        )
    levels = "--class-from folder:2 --user-from folder"
    told = call(
        f"train {by_patient} {levels} --unit user --batch-size 8 --steps 2 --noise-multiplier 4 "
        "--model linear --threads 1 --device cpu --output run"
    )
    assert "-differentially private for each single person" in told
    capsys.readouterr()
    assert main(["spent", "folder:by patient"]) == 0
    (line,) = (line for line in capsys.readouterr().err.splitlines() if "only runs on data at" in line)
    assert "give --class-from folder:2, and with it --user-from folder and --unit user" in line
    assert "for each single user: 1 run, epsilon" in call(f"spent {by_patient} {levels}")
    call("verify run")
    call("report run --public")
    call("report run --model-card")
    for name in ("report-public.html", "README.md", "statement.json", "plan.json", "ledger.jsonl", "model.safetensors"):
        content = Path("run", name).read_bytes()
        if name == "model.safetensors":  # its weights may hold any bytes
            content = content[8 : 8 + int.from_bytes(content[:8], "little")]
        assert not re.search(rb"\bp[0-9]+\b", content), f"a patient in {name}"
    assert json.loads(Path("run/settings.json").read_text())["data"]["classes"] == ["dense", "thin"]
    measured = json.loads(call(f"evaluate run {by_patient} {levels} --json"))
    assert measured["images"] == len(opened("folder:by patient", class_from="folder:2", user_from="folder").test)
    call("train run/run.toml --output again --dry-run")
