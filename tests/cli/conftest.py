"""A place to work in, and a small run to look at."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest

from sfumato.cli import main

# The noise multiplier makes the accounting quick; it does not matter here.
QUICK = "--model linear --steps 3 --noise-multiplier 8 --batch-size 64 --learning-rate 0.5 --threads 1 --device cpu"


@pytest.fixture(scope="session")
def quick() -> str:
    """Options of a run that takes no time."""
    return QUICK


@pytest.fixture(autouse=True)
def workplace(new_directory, home, monkeypatch) -> Path:
    """An empty current directory, and an owner's directory of its own."""
    path = new_directory("work")
    # One owner's key: by some, a part of a handful of images is left empty.
    (home / "owner.key").write_text("11" * 32)
    (home / "owner.key").chmod(0o600)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(path)
    return path


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory, savings) -> Path:
    """A finished run on digits."""
    path = tmp_path_factory.mktemp("digits") / "run"
    with savings():
        assert main([*shlex.split(f"train digits {QUICK} --seed 1"), "--output", str(path)]) == 0
    return path


@pytest.fixture
def call(capsys):
    """Run a command that must end with this status; gives its standard output, or of a refusal its standard error."""

    def call(command, *, status=0):
        capsys.readouterr()
        assert main(shlex.split(command)) == status
        printed = capsys.readouterr()
        return printed.out if status == 0 else printed.err

    return call


@pytest.fixture
def run(digits_run, workplace) -> str:
    """A copy of the run at ./run."""
    shutil.copytree(digits_run, workplace / "run")
    return "run"
