"""Several people on one image, from a table to the statement: `sfumato train --unit user`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

QUICK = "--model linear --steps 3 --batch-size 20 --learning-rate 0.5 --threads 1 --device cpu"


@pytest.fixture
def people(workplace) -> str:
    """A private table of 80 images, with one to three of thirty people on each, or nobody."""
    generator = np.random.default_rng(0)
    lines = ["path,label,user"]
    for number in range(80):
        who = [f"p{one}" for one in generator.choice(30, size=number % 4, replace=False)]
        pixels = 60 + 120 * (number % 2) + generator.integers(0, 60, (8, 8))
        Image.fromarray(pixels.astype(np.uint8)).save(f"{number}.png")
        lines.append(f"{number}.png,{('thin', 'dense')[number % 2]},{';'.join(who) or ';'}")
    Path("people.csv").write_text("\n".join(lines) + "\n")
    return "csv:people.csv"


def test_each_person_is_promised_for_over_all_images_that_they_are_on(call, people):
    call(f"train {people} {QUICK} --unit user --per-user 2 --epsilon 8 --output run")
    statement = json.loads(Path("run/statement.json").read_text())
    assert "over all images that they are on, up to 2 of which were used (who is on which" in statement["sentence"]
    assert (statement["plan"]["shared"], statement["adjacency"]) == (True, "zero-out")
    assert "The statement follows from the record" in call("verify run")
    edited = statement | {"plan": {name: value for name, value in statement["plan"].items() if name != "shared"}}
    Path("run/statement.json").write_text(json.dumps(edited))
    assert "FAILS" in call("verify run", status=1)


def test_people_who_share_images_are_not_drawn_as_wholes(call, people):
    refused = "sampling whole users needs one user per record; train a classifier with --unit user and --drawn examples"
    assert refused in call(f"train {people} {QUICK} --unit user --drawn users", status=1)
    assert refused in call(f"embed {people} --epsilon 8", status=1)
