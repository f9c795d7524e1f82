"""Cut the power at every moment of a run, and see whether it goes on from whatever may be left on the disk.

    python benchmarks/trust/power.py [--mixtures 4] [--every 1] [--tried N]

A small run on private data is recorded: what it wrote, renamed, linked, removed and synced, in its directory and in the
owner's. The record is cut after every event, and for each cut all that may be on the disk then is made
(`benchmarks/shared/disk.py`): what was not synced is gone, there, torn, or zeros, and of changes to a directory some
have happened. Each state must hold what was promised (`broken`), and the same command, given again, must end with the
bytes of the run that nothing disturbed. The table and benchmarks/results/power.json hold the outcome.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import numpy as np
from sklearn.datasets import load_digits

from benchmarks import RESULTS
from benchmarks.shared import disk
from sfumato._checks import SfumatoError
from sfumato.cli import main
from sfumato.privacy import ledger
from sfumato.randomness import RunKey
from sfumato.report.sections import result
from sfumato.runs import verify
from sfumato.runs.checkpoint import Checkpoint
from sfumato.runs.directory import RunDirectory
from sfumato.training import loop
from sfumato.training.conclusion import run_report

RESULT = RESULTS / "power.json"
RUN, HOME = "work/runs/run", "home"
STEPS = 3
OPTIONS = (
    "--examples 300 --noise-multiplier 8 --learning-rate 0.5 --seed 7 --device cpu --threads 1 --micro-batch 12 "
    f"--model linear --steps {STEPS} --batch-size 32 --ema 0.99 --delta 1e-5 --keep "
)
KINDS = {"checkpoints after each step, kept weights": (2, -1.0), "one checkpoint, at the end": (0, 1e9)}
"""How many weights are kept, and how many seconds lie between two checkpoints."""
SAME = ("model.safetensors", "statement.json", "metrics.jsonl", "plan.json")
"""What a run leaves that is the same however often it was interrupted; a ledger names the run's own secret."""


def data(folder: Path) -> Path:
    """Private images, not of a published collection."""
    found = load_digits()
    path = folder / "images.npz"
    np.savez(path, x=(found.images[:300] * 15).astype(np.uint8), y=found.target[:300])
    return path


def command(images: Path, root: Path, keep: int) -> list[str]:
    """The run's, in this directory."""
    return ["train", f"npz:{images}", *OPTIONS.split(), str(keep), "--output", str(root / RUN)]


def given(words: list[str], root: Path) -> tuple[int, str]:
    """A command, by an owner whose home lies in the same directory: its exit status, and what it printed."""
    os.environ["SFUMATO_HOME"] = str(root / HOME)
    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        status = main(words)
    return status, printed.getvalue()


def hastened() -> None:
    """No plots, which take longer than all else."""
    result.curve = lambda *_: ""
    run_report.true_positive_rates = lambda _, rates: [1.0 for _ in rates]


def recorded(words: list[str], root: Path) -> disk.Trace:
    """The whole run; marked are the moments at which it exists, and at which it is done."""
    root.mkdir()
    with disk.recorded(root) as trace:
        from sfumato.training.preparation import resume

        begin = resume.begin

        def beginning(*given: object) -> None:
            begin(*given)
            trace.mark("begun")

        resume.begin = beginning
        try:
            status, printed = given(words, root)
        finally:
            resume.begin = begin
        trace.mark("done")
    if status:
        sys.exit(printed)
    return trace


def broken(root: Path, passed: set[str], kept: set[int], measured: set[int]) -> Iterator[str]:
    """What of that which was promised does not hold of this state.

    Args:
        passed: which marks of the trace lie before the cut.
        kept: after which steps the run keeps weights.
        measured: after which steps it is measured.
    """
    run = root / RUN
    stands = (run / "settings.json").is_file()
    if passed and not stands:
        yield "a run that had begun is gone"
    if not stands:
        return
    try:
        settings = json.loads((run / "settings.json").read_bytes())
        entries = ledger.read(run / "ledger.jsonl")
        paid = sum(entry.kind == "release" for entry in entries)
    except (SfumatoError, ValueError) as error:
        yield f"a run whose settings or ledger cannot be read: {error}"
        return
    if not (root / HOME / "owner.key").is_file():
        yield "there is a run, and its owner's key is lost"
    done = (run / "done").is_file()
    if not done:
        try:
            key = RunKey.load(run / "dice.key").check_value(settings["run"])
            if not entries or key != entries[0].body["key_check"]:
                yield "the key is not the ledger's"
            checkpoint = Checkpoint.load(run / "checkpoint.safetensors")
            if checkpoint.step > paid:
                yield "a checkpoint has a step that is not paid"
        except SfumatoError as error:
            yield f"key or checkpoint is lost: {error}"
            return
        if any(step <= checkpoint.step and not _kept(run, step).is_file() for step in kept):
            yield "weights that were kept are lost, before the checkpoint"
        if not {step for step in measured if step <= checkpoint.step} <= _measured(run):
            yield "what was measured is lost, before the checkpoint"
    if any(int(path.stem[5:]) > paid for path in (run / "kept").glob("step-*.safetensors")):
        yield "weights were kept of a step that is not paid"
    if (run / "model.safetensors").is_file() and paid < STEPS:
        yield "there is a model, and not all steps are paid"
    if done and not verify(run).holds:
        yield "a finished run does not verify"
    if "done" in passed and ((run / "dice.key").exists() or not done):
        yield "a finished run has its key again, or is not finished"
    listed = root / HOME / "uses.jsonl"
    lines = listed.read_bytes().split(b"\n") if listed.is_file() else []
    if not any(settings["run"].encode() in line for line in lines):
        yield "the run is not on its owner's list"


def _measured(run: Path) -> set[int]:
    return {row["step"] for row in RunDirectory(run).rows()}


def _kept(run: Path, step: int) -> Path:
    return run / "kept" / f"step-{step:08}.safetensors"


def differs(root: Path, words: list[str], whole: Path, *, own_key: bool) -> str | None:
    """How the same command, given again, ends otherwise than the run that nothing disturbed; None where it doesn't.

    Args:
        own_key: whether the owner's key is there. Without it, and without a run, another one is made, and other images
            are held out by it.
    """
    run, ended = root / RUN, (root / RUN / "done").exists()
    status, printed = given(words, root)
    if status != (1 if ended else 0):
        return printed.splitlines()[-1] if printed else f"exit status {status}"
    if not own_key:
        return None if verify(run).holds else "it does not verify"
    for name in (*SAME, *(str(path.relative_to(whole)) for path in sorted(whole.glob("kept/*")))):
        if not (run / name).is_file() or (run / name).read_bytes() != (whole / name).read_bytes():
            return f"{name} differs"
    kinds = [[entry.body.get("step") for entry in ledger.read(one / "ledger.jsonl")] for one in (run, whole)]
    if kinds[0] != kinds[1]:
        return "the ledger has other lines"
    if sorted(path.name for path in run.iterdir()) != sorted(path.name for path in whole.iterdir()):
        return f"other files are left: {sorted(path.name for path in run.iterdir())}"
    return None if verify(run).holds else "it does not verify"


def drill(
    scratch: Path, kind: str, *, mixtures: int, every: int = 1, tried: int | None = None, told: bool = False
) -> dict[str, Any]:
    """Record a run, cut it, look at what is left, and go on from it.

    Args:
        kind: of `KINDS`.
        mixtures: see `disk.states`.
        every: only each so many-th cut.
        tried: so many states are gone on from, at even distances; None for all.
        told: whether what is broken is printed at once.
    """
    hastened()
    keep, loop.CHECKPOINT_SECONDS = KINDS[kind]
    images, root = data(scratch), scratch / "whole"
    trace = recorded(command(images, root, keep), root)
    whole = root / RUN
    kept = {int(path.stem[5:]) for path in whole.glob("kept/*")}
    measured = _measured(whole)
    cuts = range(0, len(trace.events) + 1, every)
    found: dict[disk.State, set[str]] = {}
    for cut, state in disk.possible(trace, cuts, mixtures=mixtures):
        found.setdefault(state, set()).update(name for name, place in trace.marks.items() if place <= cut)
    problems: Counter[str] = Counter()
    going_on = range(0, len(found), 1 if tried is None else max(1, len(found) // tried))
    for number, (state, passed) in enumerate(found.items()):
        place = scratch / "state"
        place.mkdir()
        state.put(place)
        own = list(broken(place, passed, kept, measured))
        if number in going_on:
            own_key = state.get(f"{HOME}/owner.key") is not None
            otherwise = differs(place, command(images, place, keep), whole, own_key=own_key)
            own += [] if otherwise is None else [otherwise]
        for problem in own:
            problems[problem.replace(str(place), "")] += 1
            if told:
                print(f"{kind}, state {number}: {problem}", flush=True)
        shutil.rmtree(place)
    shutil.rmtree(root)
    syncs = sum(isinstance(event, disk.Sync) for event in trace.events)
    known = {"events": len(trace.events), "syncs": syncs, "cuts": len(cuts), "states": len(found)}
    return known | {"gone_on_from": len(going_on), "broken": dict(problems)}


def run(arguments: argparse.Namespace) -> int:
    """Do it all; exit status 1 if anything was lost, paid twice or refused."""
    began = time.monotonic()
    how = {"mixtures": arguments.mixtures, "every": arguments.every, "tried": arguments.tried}
    with tempfile.TemporaryDirectory() as scratch:
        kinds = {kind: drill(Path(scratch), kind, **how, told=True) for kind in KINDS}
    outcome: dict[str, Any] = {"kinds": kinds, "command": f"sfumato train npz:images.npz {OPTIONS}..."} | how
    outcome |= {"seconds": round(time.monotonic() - began, 1), "python": sys.version.split()[0]}
    if arguments.every == 1 and arguments.tried is None:
        RESULT.write_text(json.dumps(outcome, indent=2) + "\n")
    print(json.dumps(outcome, indent=2))
    return 1 if any(kind["broken"] for kind in kinds.values()) else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mixtures", type=int, default=4, help="states of each cut drawn at random (default: 4)")
    parser.add_argument("--every", type=int, default=1, help="only each so many-th cut (default: 1)")
    parser.add_argument("--tried", type=int, help="go on from so many states of each kind of run (default: all)")
    sys.exit(run(parser.parse_args()))
