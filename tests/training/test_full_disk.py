"""The disk is full within each kind of file that a run writes: it is said, and then the same command goes on."""

from __future__ import annotations

import builtins
import errno
import os
from pathlib import Path

import pytest

from sfumato.cli import main
from sfumato.privacy import Gaussian, Poisson, PrivacyPlan
from sfumato.runs import verify
from sfumato.runs.owner import store, uses
from sfumato.runs.owner.known import Data
from sfumato.training import loop

COMMAND = [
    "train",
    "digits",
    "--noise-multiplier",
    "8",
    "--learning-rate",
    "0.5",
    "--seed",
    "7",
    "--device",
    "cpu",
    "--threads",
    "1",
    "--model",
    "linear",
    "--steps",
    "3",
    "--batch-size",
    "32",
    "--ema",
    "0.99",
    "--keep",
    "1",
]
FILES = (
    *("settings.json", "run.toml", "dice.key", "plan.json", "ledger.jsonl", "checkpoint.safetensors", "metrics.jsonl"),
    *("step-00000003.safetensors", "evaluation.json", "statement.json", "report.html", "model.safetensors", "done"),
)
OTHERS = [
    pytest.param(name, share, marks=pytest.mark.slow)
    for number, name in enumerate(FILES)
    for share in (0.0, 1.0)
    if number % 2 == share or name.endswith(".jsonl")
]
"""Nothing of a file and all of it: both for files that grow by lines, one for those that are written as a whole."""


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory):
    """One owner; checkpoints after each step, and no plots."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SFUMATO_HOME", str(tmp_path_factory.mktemp("home")))
        patch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)
        patch.setattr("sfumato.report.sections.learning_curves.curve", lambda *_: "")
        patch.setattr("sfumato.report.sections.calibrated.inline", lambda draw, **described: "")
        yield


@pytest.fixture(scope="module")
def straight(home, tmp_path_factory):
    """The run with room for it."""
    path = tmp_path_factory.mktemp("straight") / "run"
    assert main([*COMMAND, "--output", str(path)]) == 0
    return path


class Full:
    """A file of which the disk has room for no more than a share."""

    def __init__(self, file, share):
        self._file, self._share = file, share

    def write(self, content):
        self._file.write(content[: int(self._share * len(content))])
        self._file.flush()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.close()

    def __getattr__(self, name):
        return getattr(self._file, name)


def fill(patch, name, share, *, times=1):
    """From the file of this name on, written for so many times, the disk is full."""
    genuine, write, fdopen = os.open, os.write, os.fdopen
    full: set[int] = set()
    seen = []

    def opening(path, *how, **options):
        descriptor = genuine(path, *how, **options)
        own = Path(os.fsdecode(path)).name
        if own == name or own.startswith(f".{name}."):
            seen.append(own)
            if len(seen) >= times:
                full.add(descriptor)
        elif descriptor in full:  # a number that is used again
            full.discard(descriptor)
        return descriptor

    def writing(descriptor, content):
        if descriptor not in full or b'"kind":"begin"' in content:
            return write(descriptor, content)
        if (left := content[: int(share * len(content))].rstrip(b"\n")) and content.endswith(b"\n"):
            return write(descriptor, left)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def opened(descriptor, *how, **options):
        file = fdopen(descriptor, *how, **options)
        return Full(file, share) if descriptor in full else file

    patch.setattr(os, "open", opening)
    patch.setattr(os, "write", writing)
    patch.setattr(os, "fdopen", opened)


@pytest.mark.parametrize(("name", "share"), [*((name, 0.5) for name in FILES), *OTHERS])
def test_the_disk_is_full_within_a_file(name, share, straight, tmp_path, capsys):
    run = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        fill(patch, name, share, times=2 if name in ("checkpoint.safetensors", "ledger.jsonl", "metrics.jsonl") else 1)
        assert main([*COMMAND, "--output", str(run)]) == 1
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("error: ")
    assert "No space left on device" in line
    assert "free some space" in line
    assert main([*COMMAND, "--output", str(run)]) == 0
    for other in (
        "model.safetensors",
        "statement.json",
        "metrics.jsonl",
        "plan.json",
        "kept/step-00000003.safetensors",
    ):
        assert (run / other).read_bytes() == (straight / other).read_bytes(), other
    assert sorted(path.name for path in run.iterdir()) == sorted(path.name for path in straight.iterdir())
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert verify(run).holds


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 1.0])
def test_the_disk_is_full_within_the_list_of_runs(share, tmp_path, monkeypatch):
    """A line that is not whole is none, and the run whose line it was has not begun."""
    plan = PrivacyPlan(
        population=1000,
        participation=Poisson(batch_size=100),
        mechanism=Gaussian(noise_multiplier=2.0),
        steps=50,
        delta=1e-5,
    )
    monkeypatch.setenv("SFUMATO_HOME", str(tmp_path))
    uses.record(data := Data(("a",)), plan, run="first")
    with monkeypatch.context() as patch:
        genuine = builtins.open
        patch.setattr(store, "open", lambda *how: Full(genuine(*how), share), raising=False)
        with pytest.raises(
            ValueError,
            match=r"the list of runs .* cannot be locked and extended \(No space left on device\); free some",
        ):
            uses.record(data, plan, run="second")
    assert len(uses.earlier(data).plans) in ((1, 2) if share == 1.0 else (1,))
    uses.record(data, plan, run="second")
    assert len(uses.earlier(data).plans) == 2
