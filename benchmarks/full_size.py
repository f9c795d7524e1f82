"""The papers' own experiments at full size, on one GPU, in slices: python benchmarks/full_size.py PLACE DATA

    python benchmarks/full_size.py PLACE DATA [--minutes 9] [--only "table 13, epsilon 1, 4 views" ...]
    python benchmarks/full_size.py PLACE --device cpu --tiny

DATA holds `cifar10.npz` and `cifar100.npz` (x_train, y_train, x_test, y_test, classes), and, where they are at hand,
`squeezenet1_1_imagenet.safetensors`. PLACE keeps runs, checkpoints and logs between calls: a run that the end of a call
cuts goes on in the next one, also on another machine that has the same kind of GPU and a copy of PLACE.

The rows are in `ROWS`, the most telling first. Each is trained by `sfumato` commands; its accuracy, epsilon, seconds
and the GPU's mean power stand in results/full-size-MACHINE.json, and in docs/recipes.md, whose table a test compares
with `table()`. `--tiny` runs every row with a few small images and steps.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

sys.path.insert(0, str(Path(__file__).parents[1]))  # the repository root, for `benchmarks`

from benchmarks import RESULTS
from benchmarks.shared import measuring
from benchmarks.shared.pieces import Call, Options, Piece, measure, options_of
from benchmarks.speed import heads

HEAD, TINY_HEAD = (1_281_167, 1280, 1000), (2000, 64, 10)
TINY = "--steps 2 --batch-size 16 --examples 100"
TINY_NETWORK = f"{TINY} --model wrn-16-1 --views 2"
SECONDS_BETWEEN = 5.0
"""Between two readings of the GPU's power."""


@dataclass(frozen=True, kw_only=True)
class OptionsWithData(Options):
    """What to train, where, and for how long."""

    data: Annotated[Path | None, tyro.conf.Positional] = None
    """the folder with the arrays; not needed with --tiny"""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One run.

    Attributes:
        name: of the row.
        options: of `sfumato train`, besides source, output and device.
        paper: the accuracy that the paper has, or that others have.
        passes: how many images go through the network in training, views included; 0 where a fixed network is used.
        data: the file of the images.
        tiny: options that replace the row's for `--tiny`.
        first: arguments of the commands that come first, each with the name of its output.
    """

    name: str
    options: str
    paper: str
    passes: int = 0
    data: str = "cifar10.npz"
    tiny: str = TINY_NETWORK + " --noise-multiplier 8 --delta 1e-5"
    first: tuple[tuple[str, str], ...] = ()


PRETRAINING = (
    "pretrain recipe:de2022/pretrain-cifar100-wrn-40-4 --source npz:{data}/cifar100.npz --public",
    "cifar100",
)


def _from_random(table: int, epsilon: int, views: int, steps: int, batch: int, paper: str, only: str = "") -> Row:
    """De et al. 2022, tables 13 and 14."""
    return Row(
        name=f"table {table}, epsilon {epsilon}, {views} views",
        options=f"recipe:de2022/table{table} --epsilon {epsilon} {only}".strip(),
        paper=paper,
        passes=steps * batch * views,
    )


def _default(epsilon: int, paper: str) -> Row:
    """CIFAR-10 by the rules of the package, without public images."""
    return Row(name=f"defaults, epsilon {epsilon}", options=f"--epsilon {epsilon}", paper=paper, tiny=TINY)


def _tuned(epsilon: int, steps: int, paper: str) -> Row:
    """De et al. 2022, table 20: a WRN-40-4 from CIFAR-100."""
    return Row(
        name=f"table 20, epsilon {epsilon}",
        options=f"recipe:de2022/table20 --epsilon {epsilon} --pretrained {{place}}/cifar100",
        paper=paper,
        passes=steps * 4096 * 16,
        first=(PRETRAINING,),
    )


def _features(epsilon: int) -> Row:
    """A head on the features of a small public network of ImageNet."""
    weights = "--backbone torchvision:squeezenet1_1 --weights {data}/squeezenet1_1_imagenet.safetensors"
    return Row(
        name=f"head on SqueezeNet's features, epsilon {epsilon}",
        options=f"--epsilon {epsilon}",
        paper="",
        data="features",
        tiny=TINY,
        first=((f"features npz:{{data}}/cifar10.npz {weights} --resolution 224 --public", "features"),),
    )


ROWS = (
    _from_random(13, 1, 4, 875, 4096, "56.8% (0.6) with 16 views", "--views 4"),
    _default(1, "72.3% (DP-RandP), 56.8% (De et al.)"),
    _default(3, "69.2% (De et al.)"),
    _default(8, "81.4% (De et al.)"),
    _features(1),
    _from_random(13, 1, 16, 875, 4096, "56.8% (0.6)"),
    _from_random(13, 8, 16, 2468, 4096, "79.5% (0.7)"),
    _tuned(1, 164, "80.4%"),
    _tuned(8, 7226, "89.0%"),
    _from_random(14, 8, 32, 2000, 16_384, "81.4% (0.2)"),
)


def main(options: OptionsWithData) -> int:
    """Train the rows that are left."""
    return measure(options, pieces(options), "full-size")


def pieces(options: OptionsWithData) -> Iterator[tuple[str, Piece]]:
    """What there is to do, by name."""
    for row in ROWS:
        yield row.name, lambda call, row=row: training(call, row, options.data)
        if row is ROWS[0]:
            yield "a full batch of 1.28 million", full_batch


def training(call: Call, row: Row, data: Path | None = None) -> dict[str, Any]:
    """A whole run on the arrays of `data`, over as many calls as it takes."""
    options = call.options
    if options.tiny:
        data = options.place
        _synthetic(options.place)
    elif data is None:
        raise measuring.CannotError("DATA is not given")
    where = {"place": options.place, "data": data}
    spent = options.place / f"{_slug(row.name)}.seconds"
    with _measured(spent, options.device) as power:
        for arguments, name in row.first:
            _prepare(call, arguments.format(**where), name)
        source = f"features:{options.place}/features" if row.data == "features" else f"npz:{data}/{row.data}"
        words = [word.format(**where) for word in row.options.split()]
        words = [words[0], "--source", source, *words[1:]] if words[0].startswith("recipe:") else [source, *words]
        run = options.place / _slug(row.name)
        own = [*row.tiny.split()] if options.tiny else []
        told = _sfumato(call, run.name, ["train", *words, "--public", *own, "--output", str(run)])
    seconds, watts = _of(spent)
    kept = {name: told[name] for name in ("accuracy", "epsilon", "delta", "steps")}
    return kept | {"seconds": seconds, **({"watts": watts} if power else {})}


def _prepare(call: Call, arguments: str, name: str) -> None:
    """Run a command that a row needs, once. With `--tiny` features are those of the small pre-trained network."""
    made, words = call.options.place / name, arguments.split()
    if (made / "done").exists():
        return
    if call.options.tiny and words[0] == "features":
        _prepare(call, PRETRAINING[0].format(data=call.options.place), PRETRAINING[1])
        words = [*words[:2], "--backbone", str(call.options.place / PRETRAINING[1]), "--public"]
    elif call.options.tiny:
        words += ["--steps", "2", "--batch-size", "16", "--model", "wrn-16-1", "--views", "1"]
    _sfumato(call, name, [*words, "--output", str(made)])
    (made / "done").touch()


def full_batch(call: Call) -> dict[str, Any]:
    """One step of a head over all of ImageNet's records, synthetic features (Mehta et al. 2022): its whole command."""
    options = call.options
    sizes = records, _, _ = TINY_HEAD if options.tiny else HEAD
    cache = heads.make(options.place, *sizes)
    spent = options.place / "full-batch.seconds"
    with _measured(spent, options.device):
        words = ["train", f"features:{cache}", "--batch-size", f"{records}", "--steps", "1", "--epsilon", "1"]
        told = _sfumato(call, "full-batch", [*words, "--public", "--output", str(options.place / "full-batch")])
    return {"epsilon": told["epsilon"], "records": records, "seconds": _of(spent)[0]}


def table(results: Path = RESULTS) -> list[str]:
    """The table of docs/recipes.md: every row, with what has been measured."""
    files = [json.loads(path.read_text("utf-8")) for path in sorted(results.glob("full-size-*.json"))]
    lines = [
        "| row | paper, or others | images through the network | here | machine |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in ROWS:
        found = [(file["machine"], file["pieces"].get(row.name, {"reason": ""})) for file in files]
        done = [(machine, one) for machine, one in found if "reason" not in one]
        passes = f"{row.passes / 1e6:,.0f} million" if row.passes else ""
        here = (
            "; ".join(f"{one['accuracy']:.1%}, epsilon {one['epsilon']:.3f}" for _, one in done) or "not measured yet"
        )
        where = "; ".join(f"{measuring.machine_name(machine)}, {one['seconds'] / 60:.0f} min" for machine, one in done)
        lines.append(f"| {row.name} | {row.paper} | {passes} | {here} | {where} |")
    return lines


def _sfumato(call: Call, name: str, words: list[str]) -> Any:
    return call.last(name, [sys.executable, "-m", "sfumato", *words, "--device", call.options.device, "--json"])


@contextlib.contextmanager
def _measured(path: Path, device: str) -> Iterator[bool]:
    """Add the seconds of this slice, and the GPU's mean power in it, to a file. Gives whether power is read."""
    began, readings, over = time.monotonic(), [], threading.Event()
    query = ["nvidia-smi", "--query-gpu=power.draw", "--format=csv,noheader,nounits"]

    def read() -> None:
        while not over.wait(SECONDS_BETWEEN):
            readings.append(float(subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]))

    reader = threading.Thread(target=read, daemon=True)
    if device == "cuda":
        reader.start()
    try:
        yield device == "cuda"
    finally:
        over.set()
        mean = statistics.fmean(readings) if readings else 0.0
        with path.open("a") as file:
            file.write(f"{time.monotonic() - began:.1f} {mean:.1f}\n")


def _of(path: Path) -> tuple[float, float]:
    """Seconds of all slices, and their mean power, weighed by them."""
    slices = [tuple(map(float, line.split())) for line in path.read_text().splitlines()]
    seconds = sum(one for one, _ in slices)
    return seconds, sum(one * watts for one, watts in slices) / max(seconds, 1e-9)


def _slug(name: str) -> str:
    return name.replace(",", "").replace(" ", "-").replace("'", "")


def _synthetic(place: Path) -> None:
    """A hundred small random images, as both data sets."""
    generator = np.random.default_rng(0)
    images, labels = generator.integers(256, size=(100, 32, 32, 3), dtype=np.uint8), np.arange(100) % 10
    for name in ("cifar10", "cifar100"):
        if not (path := place / f"{name}.npz").exists():
            np.savez(path, x_train=images, y_train=labels, x_test=images[:20], y_test=labels[:20])


if __name__ == "__main__":
    sys.exit(main(options_of(OptionsWithData, __doc__)))
