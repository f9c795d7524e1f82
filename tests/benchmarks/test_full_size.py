"""The papers' experiments at full size: their rows run, go on after a cut, and stand in the documentation."""

import json
import time

import pytest

from benchmarks import full_size
from benchmarks.shared.pieces import ROOT, Call, Options


def call(place):
    options = Options(place=place, device="cpu", tiny=True, results=place / "results")
    return Call(options=options, until=time.monotonic() + 600)


@pytest.mark.slow
@pytest.mark.parametrize("row", full_size.ROWS[1:], ids=lambda row: row.name)
def test_every_row_runs(tmp_path, row):
    assert full_size.training(call(tmp_path), row)["steps"] > 0


@pytest.mark.slow
def test_a_full_batch_is_one_step(tmp_path):
    found = full_size.full_batch(call(tmp_path))
    assert found["records"] == full_size.TINY_HEAD[0]
    assert 0 < found["epsilon"] <= 1


def test_the_table_of_the_recipes_has_what_was_measured(tmp_path):
    page = (ROOT / "docs" / "recipes.md").read_text("utf-8")
    assert "\n".join(full_size.table()) in page, "python -c 'from benchmarks import full_size; print(...table())'"
    name = full_size.ROWS[0].name
    done = {name: {"accuracy": 0.5678, "epsilon": 0.9028, "seconds": 600.0}, "defaults, epsilon 1": {"reason": "none"}}
    machine = json.loads(next(iter(sorted((ROOT / "benchmarks/results").glob("gpu-*.json")))).read_text())["machine"]
    (tmp_path / "full-size-one.json").write_text(json.dumps({"machine": machine, "pieces": done}))
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in full_size.table(tmp_path)}
    assert "56.8%, epsilon 0.903" in rows[name]
    assert ", 10 min |" in rows[name]
    assert "not measured yet" in rows["defaults, epsilon 1"]


def test_power_and_seconds_add_up_over_slices(tmp_path):
    (tmp_path / "some").write_text("100.0 300.0\n300.0 700.0\n")
    assert full_size._of(tmp_path / "some") == (400.0, 600.0)
