"""The benchmark for GPUs: its pieces, and the programs that they start."""

import json
import time
from pathlib import Path

import pytest

from benchmarks import full_size, gpu
from benchmarks.shared import pieces
from benchmarks.shared.pieces import ROOT, Call, Options


def options(place: Path, **more):
    return gpu.Options(place=place, device="cpu", tiny=True, results=place / "results", **more)


def test_every_file_of_tests_is_a_piece(tmp_path):
    whole = gpu.Options(place=tmp_path, device="cpu")
    names = [name for name, _ in gpu.pieces(whole)]
    assert names[0] == "smoke", "what shows something soonest comes first"
    assert {"repeatable", "whole step", "compiled", "heads", "tests:training/test_step.py"} <= set(names)
    assert any(name.startswith("clipping:") for name in names)
    assert len(names) == len(set(names))


def test_tests_are_counted_by_their_names(tmp_path, monkeypatch):
    """By a file of no imports: those of the package are run beside this one."""
    call = gpu.Call(options=options(tmp_path), until=time.monotonic() + 600)
    (name,) = gpu.tested(call.options)
    assert (gpu.ROOT / "tests" / name).exists()
    file = tmp_path / "tests" / name
    file.parent.mkdir(parents=True)
    file.write_text(
        "import os, pytest\n"
        "@pytest.mark.parametrize('number', range(11))\n"
        "def test_good(number): assert os.environ['SFUMATO_TEST_DEVICE'] == 'cpu'\n"
        "def test_bad(): assert False\n"
    )
    monkeypatch.setattr(pieces, "ROOT", tmp_path)
    found = gpu.tests(call, name)
    assert (found["passed"], found["failed"]) == (11, 1)
    assert found["not passed"] == [f"tests/{name}::test_bad"]


@pytest.mark.slow
@pytest.mark.parametrize("piece", [gpu.repeatable, gpu.compiled, gpu.head])
def test_the_programs_that_it_starts_run(tmp_path, piece):
    found = piece(gpu.Call(options=options(tmp_path), until=time.monotonic() + 600))
    numbers = [one for value in found.values() for one in (value.values() if isinstance(value, dict) else [value])]
    assert numbers
    assert all(value > 0 for value in numbers if isinstance(value, float))


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
