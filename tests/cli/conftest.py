"""A place to work in, and a small run to look at."""

import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from sfumato.audit import bound
from sfumato.cli import main

# The noise multiplier makes the accounting quick; it does not matter here.
QUICK = "--model linear --steps 3 --noise-multiplier 8 --batch-size 64 --learning-rate 0.5 --threads 1 --device cpu"


@pytest.fixture(scope="module", autouse=True)
def coarse_audits() -> Iterator[None]:
    """Bounds of sampled steps on fewer cells, which take a tenth of the time; tests/audit looks at them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bound, "CELLS", 1 << 16)
        yield


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
def shown(workplace) -> str:
    """A public archive of a few images, which none of a test's own is like."""
    images, labels = np.random.default_rng(99).integers(0, 256, (20, 8, 8), dtype=np.uint8), np.arange(20) % 2
    np.savez("shown.npz", x_train=images[:12], y_train=labels[:12], x_test=images[12:], y_test=labels[12:])
    return "npz:shown.npz"


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


@pytest.fixture(scope="session")
def wrn(tmp_path_factory, savings) -> Path:
    """A public run to take features of."""
    path = tmp_path_factory.mktemp("public") / "wrn"
    with savings():
        command = "pretrain digits --model wrn-10-1 --size 12 --steps 4 --batch-size 64 --threads 1 --device cpu"
        assert main([*shlex.split(command), "--output", str(path)]) == 0
    return path
