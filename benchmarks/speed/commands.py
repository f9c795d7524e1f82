"""What whole commands take, on an idle machine and on a busy one: python benchmarks/speed/commands.py

Wall and processor seconds of the installed command in a process of its own: help, which imports nothing heavy, and
training on data that come with scikit-learn, by the default model and by a network. Each is run as it is and with
OMP_WAIT_POLICY=ACTIVE, which lets torch's threads spin while they wait, as they do where nothing is said; once with
nothing else to do and once beside as many busy processes as there are cores. The median of three runs.

Writes results/commands-MACHINE.json. Stop everything else before.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

from benchmarks import RESULTS
from benchmarks.shared import measuring
from benchmarks.shared.problems import cores

RUNS = 3
NETWORK = "--model wrn-16-1 --steps 10 --batch-size 128 --noise-multiplier 4"
COMMANDS = {
    "help": "--help",
    "help of train": "train --help",
    "digits": "train digits",
    "digits, wrn-16-1": f"train digits {NETWORK}",
}
POLICIES = {"as it is": {}, "spinning": {"OMP_WAIT_POLICY": "ACTIVE"}}


def main() -> None:
    machine = measuring.machine("cpu")
    found: dict[str, dict[str, dict[str, float]]] = {}
    print(f"{'command':<20}{'threads':<12}{'machine':<8}{'wall s':>8}{'cpu s':>8}")
    for state, others in (("idle", 0), ("busy", cores())):
        with busy(others):
            for name, command in COMMANDS.items():
                for policy, environment in POLICIES.items():
                    if policy == "spinning" and name.startswith("help"):
                        continue
                    runs = [measure(command, environment) for _ in range(RUNS)]
                    row = {key: statistics.median(run[key] for run in runs) for key in ("wall", "processor")}
                    found.setdefault(name, {})[f"{policy}, {state}"] = row
                    print(f"{name:<20}{policy:<12}{state:<8}{row['wall']:>8.2f}{row['processor']:>8.2f}", flush=True)
    path = RESULTS / f"commands-{measuring.machine_name(machine)}.json"
    path.write_text(json.dumps({"machine": machine, "seconds": found}, indent=1) + "\n", "utf-8")


def measure(command: str, environment: dict[str, str]) -> dict[str, float]:
    """Wall and processor seconds of one command in a fresh directory, with a key of its own."""
    with tempfile.TemporaryDirectory() as folder:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_", "KMP_"))}
        clean |= {"SFUMATO_HOME": f"{folder}/home"} | environment
        before, began = _processor_seconds(), time.perf_counter()
        line = [sys.executable, "-m", "sfumato", *command.split()]
        subprocess.run(line, cwd=folder, env=clean, check=True, capture_output=True)
        return {"wall": time.perf_counter() - began, "processor": _processor_seconds() - before}


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """So many processes compute beside the work inside."""
    others = [multiprocessing.Process(target=_compute, daemon=True) for _ in range(processes)]
    for other in others:
        other.start()
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.join()


def _compute() -> None:
    while True:
        pass


if __name__ == "__main__":
    main()
