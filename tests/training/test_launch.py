"""Whole runs that several processes take together, against those of one."""

import json
from pathlib import Path

import numpy as np
import pytest

from sfumato import verify
from sfumato.privacy.ledger import read
from sfumato.runs.checkpoint import stored_statement
from sfumato.runs.directory import RunDirectory

SCRIPT = str(Path(__file__).with_name("runs_of_ranks.py"))
QUICK = "banded, features, public, cache"
OTHERS = "views, tree, truncated, lamb, half precision, public with dropout"


def spots(path: Path, seed: int) -> str:
    numbers = np.random.default_rng(seed)
    labels = np.arange(240) % 4
    images = numbers.integers(0, 120, (240, 8, 8, 1), dtype=np.uint8)
    images[np.arange(240), 2 * labels, 2 * labels] = 255
    np.savez(path, x_train=images[:200], y_train=labels[:200], x_test=images[200:], y_test=labels[200:])
    return f"npz:{path}"


@pytest.mark.parametrize("kinds", [QUICK, pytest.param(OTHERS, marks=pytest.mark.slow)])
def test_two_workers_leave_the_same_bytes_as_one(kinds, tmp_path, ranks):
    source = spots(tmp_path / "spots.npz", 0)
    for count, place in enumerate(("one", "two"), start=1):
        done = ranks(count, [SCRIPT, str(tmp_path / place), kinds, source], SFUMATO_HOME=str(tmp_path / "home"))
        assert [one.returncode for one in done] == [0] * count, [one.stderr for one in done]
        for one in done if count > 1 else ():  # of the last run, whose second worker drifts away
            assert one.stdout == "the workers' weights differ after step 1: their processors round differently\n"
    for name in kinds.split(", "):
        one, two = (RunDirectory(tmp_path / place / name) for place in ("one", "two"))
        files = sorted(path.name for path in one.path.glob("*.safetensors"))
        assert len(files) == {"cache": 3, "public": 2}.get(name.split()[0], 1)
        for file in files:
            assert (one / file).read_bytes() == (two / file).read_bytes(), file
        assert not (two / "workers.token").exists()
        assert two.finished or name == "cache"
        if name.startswith("public"):
            assert one.rows()[-1]["training_loss"] == two.rows()[-1]["training_loss"]
        if name.startswith(("public", "cache")):
            continue
        assert verify(two.path).holds
        alone, together = (run.read_json("statement.json") for run in (one, two))
        assert stored_statement(two / "model.safetensors") == alone
        assert together["computed"]["sentence"] == "computed by 2 processes of one machine that see unprotected sums"
        assert {name for name in together if together[name] != alone.get(name)} == {"computed", "not_covered"}


@pytest.mark.slow
def test_on_a_full_disk_all_end_with_one_line_and_nothing_is_paid_twice(tmp_path, ranks):
    command = [SCRIPT, str(tmp_path / "runs"), "trained over", spots(tmp_path / "spots.npz", 0)]
    home = str(tmp_path / "home")
    leader, other = ranks(2, command, SFUMATO_HOME=home, FULL_AT="2")
    assert (leader.returncode, other.returncode) == (1, 1)
    expected = "cannot be extended (No space left on device); free some space and repeat the command"
    assert expected in leader.stderr.splitlines()[-1]
    line = other.stderr.splitlines()[-1]
    assert line.startswith("the connection to another worker broke ("), line
    assert line.endswith("; give the same command again: the run resumes from its last checkpoint")
    kinds = [entry.kind for entry in read(tmp_path / "runs" / "trained over" / "ledger.jsonl")]
    assert kinds == ["begin", "workers", "release", "release"]
    (done,) = ranks(1, command, SFUMATO_HOME=home)
    assert done.returncode == 0, done.stderr
    assert verify(tmp_path / "runs" / "trained over").holds  # each step once


def test_a_worker_with_other_data_is_refused_before_the_first_step(tmp_path, ranks):
    sources = [spots(tmp_path / f"{seed}.npz", seed) for seed in (0, 1)]
    known = {"SFUMATO_HOME": str(tmp_path / "home"), "LOCAL_WORLD_SIZE": "1"}  # as on two machines
    leader, other = ranks(2, [SCRIPT, str(tmp_path / "runs"), "views", *sources], **known)
    assert [leader.returncode, other.returncode] == [1, 1]
    assert "the connection to another worker broke" in leader.stderr.splitlines()[-1]
    assert "data" in other.stderr.splitlines()[-1]
    (opening,) = (tmp_path / "runs" / "views" / "ledger.jsonl").read_text("utf-8").splitlines()[:1]
    assert json.loads(opening)["kind"] == "begin"
