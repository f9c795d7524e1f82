"""The benchmark for GPUs: its pieces, and the programs that they start."""

import time
from pathlib import Path

import pytest

from benchmarks import gpu
from benchmarks.shared import pieces


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
