"""Where classes have other shares: what is said of it, and what is done about it, as it is typed."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sfumato.cli.output.evaluation_output import largest_shift, notes

QUICK = "--model linear --steps 20 --noise-multiplier 4 --batch-size 400 --learning-rate 0.5 --threads 1 --device cpu"


def part(share, count, seed):
    """Images (N, 8, 8) that are a little lighter for one class, of which this share is."""
    generator = np.random.default_rng(seed)
    labels = (generator.random(count) < share).astype(int)
    images = generator.normal(128, 40, (count, 8, 8)) + 5 * (2 * labels[:, None, None] - 1)
    return images.clip(0, 255).astype(np.uint8), labels


@pytest.fixture
def rays(workplace) -> str:
    """A private archive whose test part has other shares, and an image."""
    (x_train, y_train), (x_test, y_test) = part(0.74, 800, 0), part(0.5, 1000, 1)
    Image.fromarray(x_test[0]).save("a.png")
    np.savez(
        "rays.npz", x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test,
        classes=np.array(["normal", "pneumonia"]),
    )  # fmt: skip
    return "npz:rays.npz"


def test_a_shift_on_the_owners_test_part_is_said_to_the_owner_alone(rays, call):
    printed = call(f"train {rays} {QUICK} --output run --seed 1")
    (line,) = [line for line in printed.splitlines() if "the model predicts pneumonia for" in line]
    for words in ("train with --class-prevalence", "for you only"):
        assert words in line
    named = line.split("pneumonia for ")[1].split(",")[0]
    call("report run --public")
    for name in ("report-public.html", "statement.json", "plan.json"):
        text = Path("run", name).read_text()
        assert "the model predicts" not in text
        assert f"pneumonia for {named}" not in text
    found = json.loads(call(f"evaluate run {rays} --json"))
    assert found["shift"]["class"] == "pneumonia"
    assert found["public"] is False
    weighted = call(f"train {rays} {QUICK} --output other --seed 1 --class-prevalence pneumonia=0.74 normal=0.26")
    assert "the model predicts" not in weighted
    assert f"{found['shift']['named']:.0%}" == named


def test_who_trained_with_weights_is_not_told_to():
    figures = {"shift": {"class": "a", "named": 0.7, "true": 0.5}, "part": "test", "public": True}
    assert "--class-prevalence" in " ".join(notes(figures, weighted=False))
    assert list(notes(figures, weighted=True)) == []


def test_declared_shares_move_what_is_measured_and_predicted(rays, call):
    call(f"train {rays} {QUICK} --output run --seed 1 --class-prevalence pneumonia=0.74 normal=0.26")
    shares = "--prevalence pneumonia=0.74 normal=0.26"
    before = json.loads(call(f"evaluate run {rays} --positive pneumonia --json"))
    after = json.loads(call(f"evaluate run {rays} --positive pneumonia {shares} --json"))
    assert after["accuracy_per_class"]["normal"] < before["accuracy_per_class"]["normal"] - 0.1
    assert after["test"]["specificity"][0] == pytest.approx(after["accuracy_per_class"]["normal"])
    assert after["test"]["prevalence"] == 0.74
    assert after["moved_from"] == {"normal": 0.5, "pneumonia": 0.5}
    assert after["moved_to"] == {"normal": 0.26, "pneumonia": 0.74}
    one, other = (json.loads(call(f"predict run a.png {how} --json")) for how in ("", shares))
    own, moved = (found["predictions"][0]["scores"]["pneumonia"] for found in (one, other))
    assert moved / (1 - moved) == pytest.approx(own / (1 - own) * 0.74 / 0.26, rel=1e-4)
    call(f"evaluate run {rays} {shares}")
    assert call("predict run a.png " + shares)
    assert "has no share for the class 'normal'" in call("predict run a.png --prevalence pneumonia=0.999", status=1)
    call(f"train {rays} {QUICK} --output plain --seed 1")
    for command in ("predict plain a.png", f"evaluate plain {rays} --positive pneumonia"):
        assert "train with --class-prevalence" in call(f"{command} {shares}", status=1)


@pytest.mark.parametrize(
    ("confusion", "found"),
    [
        ([[40, 60], [5, 95]], {"class": "odd", "named": 0.775, "true": 0.5}),
        ([[45, 5], [5, 45]], None),
        ([[4, 2], [0, 4]], None),  # of ten records: chance
        ([[960, 40], [0, 1000]], None),  # two points: not worth a line
        ([], None),
    ],
)
def test_a_shift_is_said_where_it_is_large_and_certain(confusion, found):
    assert largest_shift(confusion, ("normal", "odd")) == found
