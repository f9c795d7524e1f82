"""Several processes of one command: what is refused, what one of them fails of, and how a run goes on."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from sfumato import _devices
from sfumato.cli import main, parse
from sfumato.cli.running import _device_of
from sfumato.training import launch

COMMAND = (sys.executable, "-m", "sfumato", "train")
OPTIONS = ("--model", "cnn", "--steps", "60", "--batch-size", "100", "--micro-batch", "16", "--threads", "1")
OPTIONS += ("--seed", "3", "--epsilon", "5")


def torchrun(count: int) -> list[str]:
    """The beginning of a command of so many processes."""
    agent = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    return [*agent, "-m", "sfumato"]


@pytest.fixture
def first_of_two(monkeypatch):
    """The environment of the first of two processes, as torchrun gives it."""
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(("options", "what"), [("--seeds 2", "--seeds 2"), ("--epsilon 1,3", "--epsilon 1.0 3.0")])
def test_what_several_processes_cannot_do_is_refused_in_one_line(options, what, workplace, call, first_of_two):
    (line,) = call(f"train digits {options}", status=1).splitlines()
    assert f"{what} means several runs, but several processes train one; use one process" in line
    assert list(workplace.iterdir()) == []


def test_more_processes_than_gpus_are_refused_before_they_meet(call, workplace, monkeypatch, first_of_two):
    monkeypatch.setattr(_devices, "select", lambda name: name or "cuda")
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
    monkeypatch.setattr(launch, "join_workers", None)
    printed = call("train digits --steps 2", status=1)
    assert printed.strip() == (
        "error: processes is 2, each of which needs its own CUDA device, but torch sees 1 CUDA device; "
        "start 1, or give --device cpu"
    )
    assert list(workplace.iterdir()) == []


def test_a_run_goes_on_by_processes_on_the_device_that_it_has_recorded(run):
    assert _device_of(parse(["train", run])) == "cpu"
    assert _device_of(parse(["train", "digits"])) is None
    assert _device_of(parse(["train", "digits", "--device", "cuda:1"])) == "cuda:1"


def test_other_verbs_are_for_the_first_process_alone(call, first_of_two):
    assert "epsilon" in call("plan --examples 1000 --noise-multiplier 8 --batch-size 10 --steps 10 --delta 1e-5")


@pytest.fixture(scope="module")
def backbone(tmp_path_factory) -> Path:
    """A small run without privacy."""
    place = tmp_path_factory.mktemp("public")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SFUMATO_HOME", str(place / "home"))
        how = "--model cnn --steps 2 --batch-size 64 --threads 1 --seed 1"
        assert main(["pretrain", "digits", *how.split(), "--output", str(place / "run")]) == 0
    return place / "run"


def together(verb: str, *options: str, cwd: Path, count: int = 2) -> subprocess.CompletedProcess[str]:
    """A command of several processes."""
    command = [*torchrun(count), verb, *options, "--threads", "1"]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)


@pytest.mark.slow
def test_records_are_measured_by_several_processes_with_the_figures_of_one(backbone, call, tmp_path):
    plot = ["--positive", "3", "--plot", "roc.svg"]
    done = together("evaluate", str(backbone), "digits", "--json", *plot, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == json.loads(call(f"evaluate {backbone} digits --threads 1 --json --positive 3"))
    assert [path.name for path in tmp_path.iterdir()] == ["roc.svg"]


@pytest.mark.slow
def test_what_one_command_cannot_do_its_leader_says_in_one_line(backbone, tmp_path):
    done = together("evaluate", str(backbone), "digits", "--positive", "17", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert line.startswith("error: --positive must be one of 0, 1, 2")


@pytest.mark.slow
def test_a_cache_and_public_weights_have_the_bytes_of_one_process(backbone, call, workplace):
    """Of three, whose shares are uneven; two are those of training/test_launch.py."""
    cache = f"features digits --backbone {backbone} --batch 100"
    public = "pretrain digits --model cnn --steps 5 --batch-size 64 --micro-batch 10 --seed 1"
    for command, files in ((cache, "*"), (public, "*.safetensors")):
        name = command.split()[0]
        call(f"{command} --output {name}-one --threads 1")
        done = together(*command.split(), "--output", f"{name}-many", cwd=workplace, count=3)
        assert done.returncode == 0, done.stderr
        one, many = (
            {path.name: path.read_bytes() for path in (workplace / f"{name}-{place}").glob(files)}
            for place in ("one", "many")
        )
        assert one == many
        assert one


@pytest.mark.slow
def test_a_run_whose_worker_was_killed_goes_on_with_more_of_them_to_the_same_bytes(tmp_path):
    numbers, labels = np.random.default_rng(0), np.arange(500) % 4
    images = numbers.integers(0, 255, (500, 16, 16, 1), dtype=np.uint8)
    np.savez(
        tmp_path / "noise.npz", x_train=images[:400], y_train=labels[:400], x_test=images[400:], y_test=labels[400:]
    )
    known = {"cwd": tmp_path, "env": os.environ | {"SFUMATO_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"}}
    subprocess.run([*COMMAND, "npz:noise.npz", *OPTIONS, "--output", "one"], check=True, capture_output=True, **known)
    run = [*torchrun(2), "train", "npz:noise.npz", *OPTIONS, "--output", "two"]
    with subprocess.Popen(run, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, **known) as agent:
        ledger = tmp_path / "two" / "ledger.jsonl"
        while not ledger.exists() or len(ledger.read_bytes().splitlines()) < 8:
            assert agent.poll() is None
            time.sleep(0.05)
        ranks = {one.environ()["RANK"]: one for one in psutil.Process(agent.pid).children()}
        for one in ranks.values():
            addresses = [at.laddr.ip for at in one.net_connections("tcp") if at.status == "LISTEN"]
            assert {*addresses} == {"127.0.0.1"}, "sums without noise pass the loopback interface alone"
        ranks["1"].kill()
        _, printed = agent.communicate(timeout=100)
    assert agent.returncode == 1
    assert "Signal 9 (SIGKILL) received by PID" in printed
    subprocess.run([*torchrun(3), "train", "two"], check=True, capture_output=True, **known)
    one, two = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two"))
    assert one == two
    assert not list(Path(tmp_path / "two").glob("workers*"))
