"""What train prints before the first step, and what is said of classes that the noise hides."""

import shlex
from pathlib import Path

import numpy as np
import pytest

from sfumato.cli import main

SIX = ["data", "model", "epsilon", "time", "expected", "will not be learnt"]


@pytest.fixture
def letters(workplace) -> str:
    """A private archive in which class J has three images."""
    generator, labels = np.random.default_rng(0), np.array([0] * 200 + [1] * 200 + [2] * 3)
    images = generator.integers(0, 60, (403, 8, 8), dtype=np.uint8) + 60 * labels[:, None, None].astype(np.uint8)
    parts = {"x_train": images, "y_train": labels, "x_test": images[:40] ^ 1, "y_test": labels[:40]}
    np.savez("letters.npz", **parts, classes=np.array(["A", "B", "J"]))
    return "npz:letters.npz"


def printed(capsys, line: str) -> tuple[str, list[str]]:
    assert main(shlex.split(line)) == 0
    out, err = capsys.readouterr()
    return out, err.splitlines()


def test_train_prints_six_lines_and_the_rest_with_verbose(letters, capsys):
    asked = f"train {letters} --threads 1 --device cpu"
    out, told = printed(capsys, f"{asked} --output run --json")
    assert out.count("\n") == 1, "one JSON object"
    assert not [line for line in told if "(by rule" in line or line.startswith("note: read")]
    told = [line for line in told if line.partition(": ")[0] in SIX]
    assert [line.partition(": ")[0] for line in told] == SIX
    assert told[0] == "data: 403 training images, 3 classes, 8 x 8 pixels, grey"
    assert told[2].startswith("epsilon: 3.000 at delta 1e-05 for each single training example")
    assert told[5].endswith(": J (3 images), too few at this noise (private figures)")
    _, told = printed(capsys, f"{asked} --output other --verbose --json")
    assert [line.partition(": ")[0] for line in told if line.partition(": ")[0] in SIX] == SIX
    for words in ("steps 60 (by rule", "learning rate", "note: read 403 training images", "--unit user covers each"):
        assert words in "\n".join(told)
    out, _ = printed(capsys, f"{asked} --output third --dry-run")
    assert [line.partition("  ")[0] for line in out.splitlines()] == SIX


def test_a_class_that_is_not_learnt_is_named_to_the_owner_alone(letters, capsys):
    told, _ = printed(capsys, f"train {letters} --threads 1 --device cpu --output run")
    assert "too few to be learnt at this noise: J (3 images)  (measured on private data: for you only)" in told
    printed(capsys, "report run --public")
    assert "Too few to be learnt at this noise: J (3 training images)." in Path("run/report.html").read_text()
    for name in ("report-public.html", "statement.json", "plan.json", "ledger.jsonl"):
        assert "3 training images" not in Path("run", name).read_text()
    assert b"unlearnt" not in Path("run/model.safetensors").read_bytes()
