"""Figures of groups, as they are typed."""

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

COUNTS = {"female": 200, "male": 98, "other": 2}


@pytest.fixture
def table(workplace) -> str:
    """A private table of two classes of 8 x 8 images, of three groups, the smallest with two test images."""
    generator = np.random.default_rng(0)
    groups = [name for name, count in COUNTS.items() for _ in range(count)] * 2
    with open("t.csv", "w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["path", "label", "sex", "split"])
        for place, group in enumerate(groups):
            shade = np.clip(generator.normal(60 + 120 * (place % 2), 40, (8, 8)), 0, 255)
            Image.fromarray(shade.astype(np.uint8)).save(f"{place}.png")
            lines.writerow([f"{place}.png", "ab"[place % 2], group, "test" if place >= 300 else "train"])
    return "csv:t.csv"


def test_evaluate_prints_groups_and_says_that_they_are_private(call, table, quick):
    call(f"train {table} {quick} --output run")
    printed = call(f"evaluate run {table} --groups-from sex")
    assert re.search(r"\n  female +records 200, accuracy ", printed)
    found = json.loads(call(f"evaluate run {table} --groups-from sex --json"))
    assert [(one["name"], one["records"]) for one in found["groups"]] == list(COUNTS.items())
    assert found["public"] is False
    assert "groups" not in json.loads(call(f"evaluate run {table} --json"))
    both = json.loads(call(f"evaluate run {table} --groups-from sex --part all --json"))["groups"]
    assert [one["records"] for one in both] == [2 * count for count in COUNTS.values()]


def test_what_groups_are_refused_for(call, table, quick):
    call(f"train {table} {quick} --output run")
    assert "has no column 'age'" in call(f"evaluate run {table} --groups-from age", status=1)
    assert "must be at most 50, got 600" in call(f"evaluate run {table} --groups-from path", status=1)
    assert "--groups-from is for csv:, parquet: and hf:" in call("evaluate run digits --groups-from sex", status=1)
    call(f"train {table} {quick} --groups-from sex --output other", status=2)
    call(f"embed {table} --groups-from sex --user-column sex", status=2)
    Path("mine.toml").write_text(f'source = "{table}"\ngroups-from = "sex"\n')
    assert "has unknown options: groups_from" in call("train mine.toml", status=1)
    assert not Path("other").exists()
