"""Kill runs at random moments and see whether they end as if nothing had happened.

    python benchmarks/trust/kills.py [--kills 100] [--seed 0]

Several runs on the digits are killed with SIGKILL, at times drawn evenly from those of an uninterrupted run (every
third kill while the run is being concluded), and started again until they end. Each must have the model file of the
uninterrupted run of its kind, byte for byte, a ledger that records each step once, and a statement that verifies.
Processes are forked from one that has everything imported, so that a kill falls into a run and not into Python's start.
The table and benchmarks/results/kills.json hold the outcome.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["CUDA_VISIBLE_DEVICES"] = ""  # a process that has used CUDA cannot be forked

from benchmarks import RESULTS
from sfumato.cli import main
from sfumato.privacy import ledger
from sfumato.runs import verify
from sfumato.training import loop

RESULT = RESULTS / "kills.json"
CHECKPOINT_SECONDS = 0.05
EVERY = "--noise-multiplier 8 --seed 7 --device cpu --threads 1 --micro-batch 24"
KINDS = {
    "cnn, momentum, views, EMA": "--model cnn --steps 60 --batch-size 64 --views 2 --shift 1 --learning-rate 0.5",
    "linear, adam": "--model linear --steps 200 --batch-size 64 --optimizer adam --learning-rate 0.01 --ema 0",
    "cnn, full batch": "--model cnn --steps 4 --batch-size 1438 --micro-batch 256 --learning-rate 0.5",
}
PHASES = ("before the run exists", "between two steps or within one", "at the end", "after the done marker")


@dataclass(kw_only=True)
class Kind:
    """One kind of run: its command, the uninterrupted run, and how long that took."""

    name: str
    command: list[str]
    whole: Path
    seconds: float
    kills: Counter = field(default_factory=Counter)
    runs: int = 0
    same_bytes: int = 0
    verified: int = 0
    each_step_once: int = 0


def start(command: list[str], output: Path, printed: Path) -> int:
    """Run the command in a process of its own; gives its number."""
    pid = os.fork()
    if pid:
        return pid
    with open(printed, "a") as file, redirect_stdout(file), redirect_stderr(file):
        os._exit(main([*command, "--output", str(output)]))


def wait(pid: int) -> int:
    """How the process ended: its exit status, or minus the number of the signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def phase(output: Path) -> str:
    """Where a killed process had come to."""
    if not (output / "settings.json").exists():
        return PHASES[0]
    if (output / "done").exists():
        return PHASES[3]
    return PHASES[2] if (output / "evaluation.json").exists() else PHASES[1]


def kill_once(kind: Kind, output: Path, printed: Path, dice: random.Random, *, at_the_end: bool) -> bool:
    """Start a process and kill it. False if it ended before."""
    pid, began = start(kind.command, output, printed), time.monotonic()
    delay = dice.uniform(0, 0.1 * kind.seconds if at_the_end else kind.seconds)
    moment = None if at_the_end else began + delay
    while moment is None or time.monotonic() < moment:
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            # A resumed run has less to do, and a machine with other work is slower at times.
            kind.seconds = max(0.5, min(kind.seconds, time.monotonic() - began))
            break
        if moment is None and (output / "evaluation.json").exists():
            moment = time.monotonic() + delay
        time.sleep(0.001)
    os.kill(pid, signal.SIGKILL)
    killed = wait(pid) == -signal.SIGKILL
    if killed:
        kind.kills[phase(output)] += 1
    return killed


def settle(kind: Kind, output: Path, printed: Path) -> None:
    """Let a run go to its end and compare it with the uninterrupted one."""
    wait(start(kind.command, output, printed))
    steps = json.loads((output / "plan.json").read_text())["steps"]
    kinds = [(entry.kind, entry.body.get("step")) for entry in ledger.read(output / "ledger.jsonl")]
    kind.runs += 1
    kind.same_bytes += all(
        (output / name).read_bytes() == (kind.whole / name).read_bytes()
        for name in ("model.safetensors", "statement.json")
    )
    kind.verified += verify(output).holds
    kind.each_step_once += kinds == [("begin", None), *(("release", step) for step in range(steps)), ("end", None)]
    shutil.rmtree(output.parent)


def benchmark(kills: int, seed: int, scratch: Path) -> list[Kind]:
    """Spread the kills over the kinds of run; each run is killed up to six times."""
    loop.CHECKPOINT_SECONDS = CHECKPOINT_SECONDS
    dice, printed, kinds = random.Random(seed), scratch / "talk.txt", []
    for number, (name, options) in enumerate(KINDS.items()):
        command, whole = ["train", "digits", *EVERY.split(), *options.split()], scratch / f"whole{number}" / "run"
        with open(printed, "a") as file, redirect_stdout(file), redirect_stderr(file):
            main([*command, "--output", str(scratch / f"warm{number}" / "run")])
        began = time.monotonic()
        if wait(start(command, whole, printed)) != 0:
            sys.exit(printed.read_text())
        kinds.append(Kind(name=name, command=command, whole=whole, seconds=time.monotonic() - began))
    done, run = 0, 0
    while done < kills:
        kind, output = kinds[run % len(kinds)], scratch / f"run{run}" / "run"
        for _ in range(min(6, kills - done)):
            done += kill_once(kind, output, printed, dice, at_the_end=dice.random() < 1 / 3)
            if (output / "done").exists():
                break
        settle(kind, output, printed)
        run += 1
    return kinds


def table(kinds: list[Kind]) -> str:
    """The outcome, a row for each kind of run."""
    rows = [("kind of run", "runs", "kills", *PHASES, "same bytes", "verified", "each step once")]
    for kind in kinds:
        figures = (kind.runs, sum(kind.kills.values()), *(kind.kills[name] for name in PHASES))
        rows.append((kind.name, *map(str, (*figures, kind.same_bytes, kind.verified, kind.each_step_once))))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def report(kinds: list[Kind], *, seed: int, seconds: float) -> dict:
    """The outcome as plain data."""
    runs = sum(kind.runs for kind in kinds)
    return {
        "kills": sum(sum(kind.kills.values()) for kind in kinds),
        "runs": runs,
        "phases": {name: sum(kind.kills[name] for kind in kinds) for name in PHASES},
        "all_bytes_equal": all(kind.same_bytes == kind.runs for kind in kinds),
        "all_ledgers_verify": all(kind.verified == kind.each_step_once == kind.runs for kind in kinds),
        "kinds": {
            kind.name: {
                "command": f"sfumato {' '.join(kind.command)}",
                "runs": kind.runs,
                "kills": sum(kind.kills.values()),
                "same_bytes": kind.same_bytes,
                "verified": kind.verified,
                "each_step_once": kind.each_step_once,
            }
            for kind in kinds
        },
        "checkpoint_seconds": CHECKPOINT_SECONDS,
        "seed": seed,
        "seconds": round(seconds, 1),
        "python": sys.version.split()[0],
    }


def run(arguments: argparse.Namespace) -> int:
    """Do it all; exit status 1 if any run did not end as it should."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["SFUMATO_HOME"] = f"{scratch}/home"
        kinds = benchmark(arguments.kills, arguments.seed, Path(scratch))
    outcome = report(kinds, seed=arguments.seed, seconds=time.monotonic() - began)
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(outcome, indent=2) + "\n")
    print(table(kinds))
    good = outcome["all_bytes_equal"] and outcome["all_ledgers_verify"]
    print(
        f"{outcome['kills']} kills, {outcome['runs']} runs, {outcome['seconds']:.0f} s: {'holds' if good else 'FAILS'}"
    )
    return 0 if good else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="how many processes are killed (default: 100)")
    parser.add_argument("--seed", type=int, default=0, help="decides the moments (default: 0)")
    sys.exit(run(parser.parse_args()))
