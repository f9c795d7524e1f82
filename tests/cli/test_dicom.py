"""DICOM from the command line to the model that labels such files, and patients who are never named."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

NAMES = ("Qvortrup", "ZX-731")
"""What only the tags hold: a patient's name, and the beginning of each identifier."""

OF_USERS = "--model head --steps 3 --noise-multiplier 8 --batch-size 9 --device cpu --unit user"


@pytest.fixture
def scans(workplace, scan) -> str:
    """A private folder of 12-bit images, two of each patient, whose own windows differ from any that is declared."""
    generator = np.random.default_rng(0)
    for name, shade in (("dense", 3000), ("thin", 1000)):
        for number in range(60):
            values = (shade + generator.integers(-500, 500, (12, 12))).astype(np.uint16)
            tags = {"WindowCenter": 1500, "WindowWidth": 700, "PatientName": f"{NAMES[0]}^{number}"}
            scan(f"scans/{name}/{number}", values, PatientID=f"{NAMES[1]}/{number // 2}", **tags)
    return "folder:scans"


def scores(told: str) -> list[float]:
    return [row["score"] for row in json.loads(told)["predictions"]]


def test_a_model_labels_scans_by_the_window_that_its_own_were_read_by(call, scans, quick):
    call(f"train {scans} {quick} --seed 1 --window 0,4095 --output declared")
    call(f"train {scans} {quick} --seed 1 --output own")
    declared, own = (json.loads(Path(name, "settings.json").read_text()) for name in ("declared", "own"))
    assert declared["transform"]["window"] == [0, 4095]
    assert declared["data"]["fingerprint"] != own["data"]["fingerprint"]
    import pydicom

    values = pydicom.dcmread("scans/dense/0").pixel_array
    Image.fromarray(np.rint(values * (255 / 4095)).astype(np.uint8)).save("full.png")
    Image.fromarray(np.where(values > 1850, 255, 0).astype(np.uint8)).save("cut.png")  # 1500 and 700
    by_tags, full = scores(call("predict declared scans/dense/0 full.png --json"))
    assert by_tags == full
    by_tags, cut = scores(call("predict own scans/dense/0 cut.png --json"))
    assert by_tags == cut
    assert scores(call("predict declared scans/dense/0 --json")) != scores(call("predict own scans/dense/0 --json"))
    found = json.loads(call("predict own scans --json"))["predictions"]
    assert len(found) == 120


def test_no_byte_that_is_left_or_printed_names_a_patient(call, scans, shown, quick, workplace, monkeypatch):
    home = Path("home")
    monkeypatch.setenv("SFUMATO_HOME", str(home.resolve()))
    printed = [
        call(f"train {scans} {quick} --user-from dicom --unit user --batch-size 9 --keep 2 --output run"),
        call("report run --public"),
        call("predict run scans/thin/0 --json"),
        call(f"evaluate run {scans} --user-from dicom --json"),
    ]
    call("pretrain digits --model lenet-300-100 --size 12 --steps 2 --batch-size 32 --device cpu --output public")
    printed += [
        call(f"features {scans} --user-from dicom --backbone public --output cache"),
        call(f"train features:cache {OF_USERS} --output headed"),
        call(f"dedup {shown} {scans} --user-from dicom --output left --json"),
    ]
    told = json.loads(Path("run/plan.json").read_text())
    assert told["unit"] != "example"
    assert "users" in json.loads(Path("run/statement.json").read_text())["circumstances"]["read"]
    refused = [call(f"evaluate run {scans} --json", status=1)]
    assert "and another split would separate" in refused[0]
    assert not [text for text in printed + refused if any(name in text for name in NAMES)]
    written = [
        path for path in workplace.rglob("*") if path.is_file() and "scans" not in path.relative_to(workplace).parts
    ]
    assert {"settings.json", "model.safetensors", "report.html"} <= {path.name for path in written}
    assert any("home" in path.parts for path in written)
    for path in written:
        for name in NAMES:
            assert name.encode() not in path.read_bytes(), path
