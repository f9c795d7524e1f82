"""Everything that wants a GPU, in one command that goes on where it stopped: python benchmarks/gpu.py PLACE

    python benchmarks/gpu.py PLACE [--minutes 9] [--only smoke heads ...] [--tiny --device cpu]

PLACE keeps runs, caches and logs between calls.
The pieces, each of them resumable:

- `smoke`: one command of each kind (`smoke.py`), each printed as soon as it has ended;
- `repeatable`: what a step costs that gives the same bits each time, over one that need not;
- `whole step`: a step of `train` beside its bare clipped sum, a WRN-16-4 at batch 4,096 (`speed/beside_the_sum.py`);
- `tests`: the tests, those of the engine with their comparisons on the device, file by file;
- `clipping`: clipping.py's table with all peers that are installed, row by row;
- `compiled`: a plain step, the same compiled by `torch.compile`, and the clipped gradient, interleaved;
- `heads`: a full-batch step over 1,280,000 x 1,280 features with 1,000 classes against its bare products.

What is finished stands in results/gpu-MACHINE.json (clipping in its own file as well) and is not measured again: see
`shared/pieces.py`. `--tiny` runs all of it at a size for which a processor is enough. Whole trainings by the papers are
`full_size.py`.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the repository root, for `benchmarks`

from benchmarks.shared import problems
from benchmarks.shared.pieces import ROOT, Call, Options, Piece, measure, options_of

TESTED = ("gradients", "training", "cli", "models", "data", "averaging", "optim", "randomness", "privacy", "report")
HEAD, TINY_HEAD = (1_280_000, 1280, 1000), (2000, 64, 10)
TINY_STEP = "--model wrn-10-1 --batch 16 --records 64"


def main(options: Options) -> int:
    """Measure what is left."""
    return measure(options, pieces(options), "gpu")


def pieces(options: Options) -> Iterator[tuple[str, Piece]]:
    """What there is to do, by name, the quick ones first."""
    yield "smoke", smoke
    yield "repeatable", repeatable
    rows = ["lenet5"] if options.tiny else list(problems.rows(options.device))
    for row in rows:
        yield f"clipping:{row}", lambda call, row=row: clipping(call, row)
    yield "whole step", whole_step
    yield "compiled", compiled
    yield "heads", head
    for file in tested(options):
        yield f"tests:{file}", lambda call, file=file: tests(call, file)


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
    return by_network(call, "repeatable", REPEATED)


def by_network(call: Call, what: str, program: str) -> dict[str, Any]:
    """What a program prints last for each of the networks, by its name."""
    options = call.options
    found = {}
    for name, size, count in [("cnn", 28, 16)] if options.tiny else NETWORKS:
        found[name] = call.last(what, [sys.executable, "-c", program, options.device, name, str(size), str(count)])
        print(f"  {name:<40}{json.dumps(found[name])}", flush=True)
    return found


NETWORKS = [("wrn-16-4", 32, 1024), ("nf-resnet-50", 224, 64), ("timm:vit_tiny_patch16_224", 224, 128)]
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


def compiled(call: Call) -> dict[str, Any]:
    """By network: milliseconds of a plain step, of the same compiled, and of a clipped gradient, and both ratios."""
    return by_network(call, "compiled", COMPILED)


COMPILED = """
import json, sys
from statistics import median
import torch
from torch.nn.functional import cross_entropy
from benchmarks.shared import measuring
from sfumato import ClippedGradient, models
device, name, size, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
model = models.create(name, classes=10, channels=3, size=size).to(device)
images, labels = torch.randn(count, 3, size, size, device=device), torch.arange(count, device=device) % 10
weights = list(model.parameters())
faster = torch.compile(model)
gradient = ClippedGradient(model, cross_entropy, max_norm=1.0)
steps = {
    "eager": lambda: torch.autograd.grad(cross_entropy(model(images), labels), weights),
    "compiled": lambda: torch.autograd.grad(cross_entropy(faster(images), labels), weights),
    "clipped": lambda: gradient(images, labels),
}
for step in steps.values():  # compiles, and measures which method is fastest
    step(), step()
times = {way: [] for way in steps}
for _ in range(7):
    for way, step in steps.items():
        times[way].append(1e3 * measuring.seconds(step, 1, device))
found = {way: median(each) for way, each in times.items()}
found |= {f"clipped over {way}": found["clipped"] / found[way] for way in ("eager", "compiled")}
print(json.dumps({what: round(value, 3) for what, value in found.items()}))
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


if __name__ == "__main__":
    sys.exit(main(options_of(Options, __doc__)))
