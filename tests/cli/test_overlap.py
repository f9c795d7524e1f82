"""Verbs say which records runs on another data set have used, and tell it to nobody but who looks at the screen."""

import json
import shlex

import numpy as np
import pytest

import sfumato
from sfumato.cli import main

TOLD = "used by 1 run of yours on another data set (runs/whole)"


@pytest.fixture
def used(workplace):
    """Two data sets, of which one is a part of the other, which a run has used."""
    images = np.random.default_rng(0).integers(0, 255, (60, 8, 8), dtype=np.uint8)
    for name, count in (("whole", 60), ("part", 30)):
        np.savez(workplace / f"{name}.npz", x=images[:count], y=np.arange(count) % 2)
    how = {"noise_multiplier": 4.0, "batch_size": 10, "steps": 1, "delta": 1e-5}
    sfumato.train("linear", "npz:whole.npz", directory=workplace / "runs" / "whole", **how)


SIZES = "--model linear --noise-multiplier 4 --batch-size 10 --steps 1 --delta 1e-5 --threads 1 --device cpu"


def said(capsys, command):
    capsys.readouterr()
    assert main(shlex.split(command)) == 0
    return capsys.readouterr()


@pytest.mark.parametrize("command", [f"train npz:part.npz {SIZES} --output a --dry-run", "spent npz:part.npz"])
def test_it_is_a_note_and_no_json(used, capsys, workplace, command):
    told = said(capsys, command)
    assert TOLD in told.err + told.out
    told = said(capsys, f"{command} --json")
    json.loads(told.out)
    assert TOLD in told.err
    assert "another data set" not in told.out
    assert not (workplace / "a").exists()


def test_a_dry_run_and_a_question_remember_nothing(used, capsys, home):
    before = {path.name: path.read_bytes() for path in (home / "used-records").iterdir()}
    said(capsys, f"train npz:part.npz {SIZES} --output a --dry-run")
    said(capsys, "spent npz:part.npz")
    assert {path.name: path.read_bytes() for path in (home / "used-records").iterdir()} == before


def test_searches_say_it_and_write_it_nowhere(used, capsys, workplace):
    how = "--vary learning_rate=0.1,0.2 --search uncovered --validation 0.4 --output s --seed 3"
    told = said(capsys, f"sweep npz:part.npz {SIZES} {how}")
    assert TOLD in told.err
    for path in (path for path in (workplace / "s").rglob("*") if path.is_file()):
        assert b"another data set" not in path.read_bytes()
