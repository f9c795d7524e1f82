"""Everything that wants a GPU, in one command that goes on where it stopped: python benchmarks/gpu.py PLACE --data DATA

    python benchmarks/gpu.py PLACE --data DATA [--minutes 9] [--only smoke heads ...] [--tiny --device cpu]

PLACE keeps runs, caches and logs between calls. DATA holds `cifar10.npz` (x_train, y_train, x_test, y_test, classes).
The pieces, each of them resumable:

- `smoke`: one command of each kind (`smoke.py`), each printed as soon as it has ended;
- `repeatable`: what a step costs that gives the same bits each time, over one that need not;
- `whole step`: a step of `train` beside its bare clipped sum, a WRN-16-4 at batch 4,096 (`speed/beside_the_sum.py`);
- `tests`: the tests, those of the engine with their comparisons on the device, file by file;
- `clipping`: clipping.py's table with all peers that are installed, row by row;
- `heads`: a full-batch step over 1,280,000 x 1,280 features with 1,000 classes against its bare products;
- `epsilon 1`, `epsilon 8`: a WRN-16-4 on CIFAR-10 by De et al. 2022, table 13.

A call does what is left until its minutes are up, and says what is still to be done; no piece is begun that could not
be interrupted in time. What is finished stands in results/gpu-MACHINE.json (clipping and heads in their own files as
well) and is not measured again. `--tiny` runs all of it at a size for which a processor is enough.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
import tyro

sys.path.insert(0, str(Path(__file__).parents[1]))  # the repository root, for `benchmarks`

from benchmarks import RESULTS
from benchmarks.shared import measuring, problems

ROOT = Path(__file__).resolve().parents[1]
TESTED = ("gradients", "training", "cli", "models", "data", "averaging", "optim", "randomness", "privacy", "report")
HEAD, TINY_HEAD = (1_280_000, 1280, 1000), (2000, 64, 10)
TINY_RUN = "--steps 2 --batch-size 16 --views 2 --model wrn-16-1 --noise-multiplier 8 --delta 1e-5 --examples 100"
TINY_STEP = "--model wrn-10-1 --batch 16 --records 64"
PATIENCE = 60.0
"""Seconds that a process has to write its last checkpoint."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure, where, and for how long."""

    place: Annotated[Path, tyro.conf.Positional]
    """keeps runs, caches and logs between calls"""
    data: Path | None = None
    """the folder with cifar10.npz; not needed with --tiny"""
    only: tuple[str, ...] = ()
    """some of the pieces"""
    minutes: float = 9.0
    """how long this call may take"""
    device: Literal["cuda", "cpu"] = "cuda"
    tiny: bool = False
    """a size for which a processor is enough"""
    results: Path = RESULTS
    """where the figures go"""


class TimeIsUpError(Exception):
    """The call's minutes are over; the piece goes on in the next one."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call: its options, and when it must end."""

    options: Options
    until: float

    @property
    def left(self) -> float:
        """Seconds."""
        return self.until - time.monotonic()

    def run(self, name: str, command: Sequence[str], *, shown: bool = False, **environment: str) -> str:
        """What a process printed; it is interrupted when the time is up. Its output is added to PLACE/NAME.log.

        Args:
            shown: whether it prints to the terminal, as it goes, and nothing is returned.
        """
        out = None if shown else subprocess.PIPE
        if self.left < PATIENCE / 2:
            raise TimeIsUpError
        log = self.options.place / f"{name.replace('/', '-')}.log"
        with (
            log.open("a") as talk,
            subprocess.Popen(
                list(command), stdout=out, stderr=talk, text=True, env=os.environ | environment, cwd=ROOT
            ) as process,
        ):
            try:
                printed, _ = process.communicate(timeout=max(1.0, self.left - PATIENCE / 2))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.communicate(timeout=PATIENCE)
                process.kill()
                raise TimeIsUpError from None
        with log.open("a") as talk:
            talk.write(printed or "")
        return printed or ""

    def last(self, name: str, command: Sequence[str]) -> Any:
        """The last line that `run` returns, which is JSON; `CannotError` with the log's last line if there is none."""
        if lines := self.run(name, command).splitlines():
            return json.loads(lines[-1])
        said = (self.options.place / f"{name.replace('/', '-')}.log").read_text().splitlines()
        raise measuring.CannotError(said[-1] if said else "it printed nothing")


def main(options: Options) -> int:
    options.place.mkdir(parents=True, exist_ok=True)
    machine = measuring.machine(options.device)
    path = options.results / f"{'tiny-' if options.tiny else ''}gpu-{measuring.machine_name(machine)}.json"
    found = json.loads(path.read_text()) if path.exists() else {"machine": machine, "pieces": {}}
    call = Call(options=options, until=time.monotonic() + 60 * options.minutes)
    left = []
    for name, piece in pieces(options):
        known = found["pieces"].get(name, {"reason": "not yet measured"})
        if "reason" not in known or (options.only and name.partition(":")[0] not in options.only):
            continue
        try:
            row = piece(call)
        except TimeIsUpError:
            left.append(name)
            continue
        except Exception as error:
            row = {"reason": measuring.reason(error)}
        found["pieces"][name] = row
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
        print(f"{name:<24}{json.dumps(row)}"[:220], flush=True)
    print(f"left for the next call: {', '.join(left)}" if left else f"all done: {path}")
    return 0


def pieces(options: Options) -> Iterator[tuple[str, Callable[[Call], dict[str, Any]]]]:
    """What there is to do, by name, the quick ones first."""
    yield "smoke", smoke
    yield "repeatable", repeatable
    rows = ["lenet5"] if options.tiny else list(problems.rows(options.device))
    for row in rows:
        yield f"clipping:{row}", lambda call, row=row: clipping(call, row)
    yield "whole step", whole_step
    yield "heads", head
    for file in tested(options):
        yield f"tests:{file}", lambda call, file=file: tests(call, file)
    for epsilon in (1, 8):
        yield f"epsilon {epsilon}", lambda call, epsilon=epsilon: training(call, epsilon)


def tested(options: Options) -> list[str]:
    """The files of tests, by path."""
    if options.tiny:
        return ["gradients/sites/test_linear.py"]
    here = ROOT / "tests"
    return [str(path.relative_to(here)) for room in TESTED for path in sorted((here / room).rglob("test_*.py"))]


def smoke(call: Call) -> dict[str, Any]:
    """One command of each kind, and a run that is killed and one that is repeated."""
    options = call.options
    place, file = options.place / "smoke", options.place / "smoke.json"
    shutil.rmtree(place, ignore_errors=True)
    command = [sys.executable, str(ROOT / "benchmarks" / "smoke.py"), str(place), "--device", options.device]
    call.run("smoke", [*command, "--json", str(file)], shown=True)
    return json.loads(file.read_text())


def repeatable(call: Call) -> dict[str, Any]:
    """By network: how many times as long a clipped gradient takes that gives the same bits each time."""
    options = call.options
    found = {}
    for name, size, count in [("cnn", 28, 16)] if options.tiny else DETERMINISTIC:
        command = [sys.executable, "-c", REPEATED, options.device, name, str(size), str(count)]
        found[name] = call.last("repeatable", command)
        print(f"  {name:<40}{found[name]:.2f}", flush=True)
    return found


DETERMINISTIC = [("wrn-16-4", 32, 1024), ("nf-resnet-50", 224, 64), ("timm:vit_tiny_patch16_224", 224, 128)]
"""Networks, the side of their images, and how many."""
REPEATED = """
import json, sys, time
from statistics import median
import torch
from torch.nn.functional import cross_entropy
from sfumato import ClippedGradient, _devices, models
device, name, size, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
model = models.create(name, classes=10, channels=3, size=size).to(device)
images, labels = torch.randn(count, 3, size, size, device=device), torch.arange(count, device=device) % 10
gradient = ClippedGradient(model, cross_entropy, max_norm=1.0)

def seconds():
    _devices.synchronize(images.device)
    began = time.monotonic()
    gradient(images, labels)
    _devices.synchronize(images.device)
    return time.monotonic() - began

seconds()  # the first measures which method is fastest
found = []
for _ in range(5):
    free = min(seconds() for _ in range(2))
    with _devices.deterministic(device):
        found.append(min(seconds() for _ in range(2)) / free)
print(json.dumps(median(found)))
"""


def tests(call: Call, file: str) -> dict[str, Any]:
    """One file's outcome, and the names of those that failed."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:benchmark", f"tests/{file}"]
    device = {"SFUMATO_TEST_DEVICE": call.options.device}
    # Such a file is short; one that does not fit into what is left is begun anew by the next call.
    printed = call.run(f"tests-{file}", command, **device)
    counts = {what: int(count) for count, what in re.findall(r"(\d+) (passed|failed|skipped|errors?)", printed)}
    return counts | {"not passed": re.findall(r"^(?:FAILED|ERROR) (\S+)", printed, re.MULTILINE)}


def clipping(call: Call, row: str) -> dict[str, Any]:
    """One row of the clipping table, in its own file too."""
    options = call.options
    file = options.place / f"clipping-{row}.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "speed" / "clipping.py"), "--device", options.device]
    command += ["--models", row, "--json", str(file)]
    if options.tiny:
        command += ["--ways", "sfumato", "vmap", "--rounds", "1", "--no-memory"]
    call.run(f"clipping-{row}", command)
    return json.loads(file.read_text())["rows"][row]


def head(call: Call) -> dict[str, Any]:
    """A full-batch step over cached features, against its two bare products on the same features."""
    options = call.options
    command = [sys.executable, "-c", HEAD_STEP, str(options.place), options.device]
    return call.last("heads", [*command, *map(str, TINY_HEAD if options.tiny else HEAD)])


HEAD_STEP = """
import json, sys
from pathlib import Path
from benchmarks.speed import heads
place, device, *sizes = sys.argv[1:]
print(json.dumps(heads.measured(heads.make(Path(place), *map(int, sizes)), device)))
"""


def whole_step(call: Call) -> dict[str, Any]:
    """A whole step of `train` beside the bare sum of its batch, in milliseconds."""
    options = call.options
    command = [sys.executable, str(ROOT / "benchmarks" / "speed" / "beside_the_sum.py"), "--device", options.device]
    command += TINY_STEP.split() if options.tiny else []
    return call.last("whole-step", command)


def training(call: Call, epsilon: int) -> dict[str, Any]:
    """A whole run by De et al. 2022, table 13, at this epsilon, over as many calls as it takes."""
    options = call.options
    run = options.place / f"epsilon-{epsilon}"
    times = options.place / f"epsilon-{epsilon}.seconds"
    if options.tiny:
        data, changes = options.place / "tiny.npz", TINY_RUN.split()
        _synthetic(data)
    elif options.data is None:
        raise measuring.CannotError("--data is not given")
    else:
        data, changes = options.data / "cifar10.npz", []
    row = ["recipe:de2022/table13", "--epsilon", f"{epsilon}"]
    command = [sys.executable, "-m", "sfumato", "train", *row, "--source", f"npz:{data}", "--public", *changes]
    began = time.monotonic()
    try:
        told = call.last(run.name, [*command, "--output", str(run), "--device", options.device, "--json"])
    finally:
        with times.open("a") as file:
            file.write(f"{time.monotonic() - began:.1f}\n")
    seconds = sum(map(float, times.read_text().split()))
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    kept = {name: told[name] for name in ("accuracy", "epsilon", "delta", "steps")}
    return kept | {"accuracy_of_last_weights": last.get("accuracy_of_last_weights"), "seconds": seconds}


def _synthetic(path: Path) -> None:
    """A hundred small random images."""
    if path.exists():
        return
    generator = np.random.default_rng(0)
    images, labels = generator.integers(256, size=(100, 32, 32, 3), dtype=np.uint8), np.arange(100) % 10
    np.savez(path, x_train=images, y_train=labels, x_test=images[:20], y_test=labels[:20])


if __name__ == "__main__":
    if "cuda" in tyro.cli(Options, description=__doc__).device and not torch.cuda.is_available():
        raise SystemExit("error: torch sees no GPU; give --device cpu --tiny to try the command")
    sys.exit(main(tyro.cli(Options, description=__doc__)))
