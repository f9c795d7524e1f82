"""Several processes for one run: python benchmarks/scale/workers.py [--kills 30] [--batch 256] [--processes 1 2]

- Seconds and bytes over the loopback interface of a step of a WRN-16-4 by so many processes, with one thread each, by
  the difference of a run of 2 and one of 5 steps, so that what a run does at its ends is not in them.
- Kills: copies of one begun run go on with 1, 2 or 3 processes, one of which is killed at a random moment, and so on
  until the run ends; its model must have the bytes of one process's, and its ledger each step once. As many copies as
  `--kills` asks kills of. (Runs that are begun anew may choose other methods for their layers, which round otherwise.)

Writes results/workers-MACHINE.json; what was not asked for (`--kills 0`, or `--processes` with nothing behind it) stays
in it as it was.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import psutil
import tyro

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

from benchmarks import RESULTS
from benchmarks.shared.measuring import machine, machine_name
from sfumato import verify

FEW, MANY = 2, 5
PARAMETERS = 2_748_890
SMALL = "train npz:small.npz --model cnn --steps 40 --batch-size 200 --micro-batch 20 --threads 1 --seed 3 --epsilon 5"
LONGEST, MOST = 6.0, 6
"""Seconds after its first step within which a process is killed, and how many a run may lose."""
BEGUN = "begun"


def command(words: str, processes: int = 1) -> list[str]:
    """Of one run by so many processes."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    return [sys.executable, *(torchrun if processes > 1 else ()), "-m", "sfumato", *words.split()]


def environment(place: Path) -> dict[str, str]:
    """One thread, and an owner of its own."""
    return os.environ | {"SFUMATO_HOME": str(place / "home"), "OMP_NUM_THREADS": "1"}


def loopback() -> int:
    """Bytes that were sent over it so far."""
    return psutil.net_io_counters(pernic=True)["lo"].bytes_sent


def of_a_step(place: Path, processes: int, batch: int) -> dict[str, float]:
    """Seconds, and bytes sent by each process for each parameter."""
    seconds, sent = {}, {}
    for steps in (FEW, MANY):
        words = (
            f"train npz:large.npz --model wrn-16-4 --views 1 --batch-size {batch} --examples {batch} --steps {steps}"
        )
        words += " --micro-batch 32 --threads 1 --noise-multiplier 1 --keep 0"
        before, began = loopback(), time.monotonic()
        done = [*command(words, processes), "--output", f"speed-{processes}-{steps}"]
        subprocess.run(done, check=True, capture_output=True, cwd=place, env=environment(place))
        seconds[steps], sent[steps] = time.monotonic() - began, loopback() - before
    steps = MANY - FEW
    each = (sent[MANY] - sent[FEW]) / (steps * processes * PARAMETERS)
    return {"seconds": (seconds[MANY] - seconds[FEW]) / steps, "bytes_per_parameter": each}


def killed(place: Path, name: str, dice: random.Random) -> list[str]:
    """Go on with a copy of the run until it ends; whom each attempt lost."""
    shutil.copytree(place / BEGUN, place / name)
    lost: list[str] = []
    while not (place / name / "done").exists():
        processes = dice.randint(1, 3)
        begun = command(f"train {name}", processes)
        with subprocess.Popen(begun, cwd=place, env=environment(place), stdout=-3, stderr=-3) as agent:
            moment = dice.uniform(0, LONGEST)
            ledger = place / name / "ledger.jsonl"
            before = ledger.stat().st_size if ledger.exists() else 0
            while agent.poll() is None and not (ledger.exists() and ledger.stat().st_size > before):
                time.sleep(0.05)
            try:
                agent.wait(moment if len(lost) < MOST else None)
            except subprocess.TimeoutExpired:
                one = psutil.Process(agent.pid)
                victim = dice.choice(one.children() if processes > 1 else [one])
                number = int(victim.environ().get("RANK", "0"))
                victim.kill()
                lost.append(f"{'leader' if number == 0 else 'worker'} of {processes}")
                agent.wait()
    return lost


def main(kills: int = 30, batch: int = 256, processes: tuple[int, ...] = (1, 2)) -> None:
    """Measure.

    Args:
        kills: of how many processes.
        batch: examples in a step of the WRN.
        processes: numbers of them.
    """
    numbers, about = np.random.default_rng(0), machine("cpu")
    path = RESULTS / f"workers-{machine_name(about)}.json"
    result: dict[str, Any] = (json.loads(path.read_text("utf-8")) if path.exists() else {}) | {"machine": about}
    with TemporaryDirectory() as folder:
        place = Path(folder)
        for name, count, side, channels in (("large", batch, 32, 3), ("small", 1000, 16, 1)):
            images = numbers.integers(0, 255, (count + 100, side, side, channels), dtype=np.uint8)
            labels = np.arange(count + 100) % 10
            parts = {"x_train": images[:count], "y_train": labels[:count]}
            np.savez(place / f"{name}.npz", **parts, x_test=images[count:], y_test=labels[count:])
        if processes:
            result |= {"batch": batch, "step": {str(count): of_a_step(place, count, batch) for count in processes}}
            print(json.dumps(result["step"]), flush=True)
            path.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
        for found in of_kills(place, kills):
            path.write_text(json.dumps(result | found, indent=1) + "\n", "utf-8")


def of_kills(place: Path, kills: int) -> Iterator[dict[str, Any]]:
    """Whom the runs so far have lost, and which of them ended otherwise than that of one process."""
    if not kills:
        return
    known: dict[str, Any] = {"cwd": place, "env": environment(place)}
    with subprocess.Popen(command(f"{SMALL} --output {BEGUN}"), **known, stdout=-3, stderr=-3) as one:
        while not (place / BEGUN / "ledger.jsonl").exists():
            time.sleep(0.05)
        one.kill()
    shutil.copytree(place / BEGUN, place / "whole")
    subprocess.run(command("train whole"), check=True, capture_output=True, **known)
    expected = hashlib.sha256((place / "whole" / "model.safetensors").read_bytes()).hexdigest()
    dice, lost, wrong, runs = random.Random(0), [], [], 0
    while len(lost) < kills:
        name, runs = f"run-{runs}", runs + 1
        lost += killed(place, name, dice)
        found = hashlib.sha256((place / name / "model.safetensors").read_bytes()).hexdigest()
        if found != expected or not verify(place / name).holds:
            wrong.append(name)
        print(f"{len(lost)} kills in {runs} runs, {len(wrong)} of which ended otherwise", flush=True)
        by_whom = {what: lost.count(what) for what in sorted(set(lost))}
        yield {"kills": by_whom, "runs": runs, "ended otherwise": wrong}


if __name__ == "__main__":
    tyro.cli(main)
