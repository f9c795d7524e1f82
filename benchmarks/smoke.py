"""One command of each kind on a device, within minutes: the first thing to run where a GPU is lent.

    python benchmarks/smoke.py PLACE [--device cuda] [--json FILE]

Each line of the table is printed as soon as its command has ended: train (heads, networks with views, correlated noise,
full batches, people, several labels, bfloat16), pretrain, embed, features, evaluate, predict, aggregate, audit, export,
report, verify; then a run that is killed with its third step and resumed, and a seeded run that is repeated, whose
weights are compared with those of the run that was left alone. Images are made up; PLACE must be empty. The exit status
is 1 where a command failed, or where weights differ by more than rounding.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import nullcontext, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Annotated, Any
from unittest import mock

import numpy as np
import tyro
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1]))  # the repository root, for `benchmarks`

NETWORK = "train npz:@spots.npz --model cnn --views 2 --batch-size 8 --steps 6 --noise-multiplier 4 --delta 1e-5"
"""The run that is repeated, and the one that is killed with its third step. In all of them @ is PLACE."""
VIT = "timm:vit_tiny_patch16_224,depth=2"
COMMANDS = {
    "train: head": "train npz:@spots.npz --steps 3 --output @features",
    "train: network": f"{NETWORK} --output @network",
    "train: residual, views": "train npz:@spots.npz --model wrn-10-1 --views 2 --batch-size 8 --steps 2 --output @wrn",
    "train: attention": f"train npz:@spots.npz --model {VIT} --batch-size 8 --steps 2 --output @attention",
    "train: correlated": "train npz:@spots.npz --model cnn --mechanism tree --batch-size 20 --steps 3 --output @tree",
    "train: full batches": "train npz:@spots.npz --model cnn --batch-size 60 --steps 2 --output @full",
    "train: bfloat16": "train npz:@spots.npz --model cnn --precision bfloat16 --batch-size 8 --steps 2 --output @half",
    "train: people": "train npz:@owned.npz --model cnn --batch-size 8 --steps 2 --output @people",
    "pretrain": "pretrain npz:@others.npz --public --model cnn --steps 3 --output @public",
    "train: pretrained": "train npz:@spots.npz --pretrained @public --batch-size 8 --steps 2 --output @tuned",
    "features": "features npz:@spots.npz --backbone @public --output @cache",
    "train: cache": "train features:@cache --steps 3 --output @cached",
    "embed": "embed npz:@people.npz --user-from class --steps 2 --output @embedding",
    "evaluate": "evaluate @network npz:@spots.npz",
    "predict": "predict @network @spot.png",
    "aggregate": "aggregate @network",
    "audit": "audit @network --observations 60",
    "export": "export @network --to torch-export",
    "report": "report @network",
    "verify": "verify @network",
}
SEEDED, ON_A_DEVICE = ("train", "pretrain", "embed"), ("train", "pretrain", "embed", "features", "evaluate")
ROUNDING = 1e-4
"""How far weights may differ, relative to the largest of their tensor."""
STATUS = 9
"""With which the killed run ends."""


def main(
    place: Annotated[Path, tyro.conf.Positional],
    *,
    device: str = "cuda",
    json: Path | None = None,
    only_until: int | None = None,
) -> int:
    """Run all of them.

    Args:
        place: an empty folder, or one that is not there yet.
        device: where to compute; `counting` for the one that counts.
        json: a file for the rows.
        only_until: of the process that is killed: the step before which it ends.
    """
    os.environ.setdefault("SFUMATO_HOME", str(place.absolute() / "home"))
    with _device(device):
        if only_until is not None:
            return _killed(place, device, only_until)
        rows = Rows(json)
        _make(place)
        for name, command in COMMANDS.items():
            if device == "counting" and "bfloat16" in command:  # it has no autocast
                continue
            rows.add(name, lambda command=command: _run(place, device, command))
        rows.add("killed, resumed", lambda: _resumed(place, device))
        rows.add("repeated", lambda: _repeated(place, device))
    return int(any("failed" in row for row in rows.found.values()))


class Rows:
    """The table, which is printed as it grows, and kept in a file.

    Attributes:
        found: by name: seconds, and what failed or differed.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.found: dict[str, dict[str, Any]] = {}

    def add(self, name: str, measure: Any) -> None:
        """Measure a row, print it and keep it."""
        began = time.monotonic()
        row = measure()
        row = {"seconds": round(time.monotonic() - began, 1), **row}
        self.found[name] = row
        said = ", ".join(f"{key} {value}" for key, value in row.items() if key != "seconds")
        print(f"{name:<24}{row['seconds']:>7.1f} s  {said or 'done'}"[:220], flush=True)
        if self.path is not None:
            self.path.write_text(json.dumps(self.found, indent=1) + "\n", "utf-8")


def _run(place: Path, device: str, command: str) -> dict[str, Any]:
    """Run a command in this process; the last line of what it said, where it failed."""
    from sfumato.cli import main as sfumato

    said = StringIO()
    with redirect_stdout(StringIO()), redirect_stderr(said):
        try:
            status: Any = sfumato(_whole(place, device, command))
        except Exception as error:  # a fault is a row like any other
            status = f"{type(error).__name__}: {error}"
    return {} if status == 0 else {"failed": f"{status}: {(said.getvalue().strip() or '-').splitlines()[-1]}"}


def _whole(place: Path, device: str, command: str) -> list[str]:
    """A command with its device, its seed, and its paths within PLACE."""
    verb, *words = command.split()
    paths = [word.replace("@", f"{place}/") for word in words]
    where = ["--device", device] * (verb in ON_A_DEVICE)
    return [verb, *paths, *where, *(["--seed", "1"] * (verb in SEEDED))]


def _killed(place: Path, device: str, step: int) -> int:
    """The network's run, whose process ends without a word when so many steps are taken."""
    from sfumato.cli import main as sfumato
    from sfumato.training import loop

    descend, taken = loop.descend, 0

    def ended(*arguments: Any) -> Any:
        nonlocal taken
        taken += 1
        if taken > step:
            os._exit(STATUS)
        return descend(*arguments)

    with mock.patch.object(loop, "descend", ended), mock.patch.object(loop, "CHECKPOINT_SECONDS", 1e-3):
        return sfumato(_whole(place, device, f"{NETWORK} --output @killed"))


def _resumed(place: Path, device: str) -> dict[str, Any]:
    """The network's run again, killed with its third step and begun anew with the same command."""
    child = [sys.executable, __file__, str(place), "--device", device, "--only-until", "3"]
    done = subprocess.run(child, capture_output=True, text=True, check=False)
    if done.returncode != STATUS:
        return {"failed": f"the run that is killed ended with {done.returncode}: {done.stderr.strip()[-120:]}"}
    return _run(place, device, f"{NETWORK} --output @killed") or _difference(place, "killed")


def _repeated(place: Path, device: str) -> dict[str, Any]:
    return _run(place, device, f"{NETWORK} --output @again") or _difference(place, "again")


def _difference(place: Path, name: str) -> dict[str, Any]:
    """How far a run's weights are from those of the network's run."""
    from safetensors.numpy import load_file

    one, other = (load_file(place / run / "model.safetensors") for run in ("network", name))
    far = max(float(np.abs(one[key] - other[key]).max() / max(np.abs(one[key]).max(), 1e-30)) for key in one)
    if far > ROUNDING:
        return {"failed": f"its weights differ by {far:.2g}"}
    return {"weights": f"differ by {far:.2g}" if far else "the same bits"}


def _make(place: Path) -> None:
    """Small images of three classes, and of 25 people."""
    place.mkdir(parents=True, exist_ok=True)
    numbers = np.random.default_rng(0)

    def images(count: int) -> np.ndarray[Any, Any]:
        return numbers.integers(0, 255, (count, 16, 16, 3), dtype=np.uint8)

    train, test = np.arange(60) % 3, np.arange(30) % 3
    np.savez(place / "spots.npz", x_train=images(60), y_train=train, x_test=images(30), y_test=test)
    np.savez(place / "others.npz", x_train=images(60), y_train=train, x_test=images(30), y_test=test)
    parts = {"x_train": images(60), "y_train": train, "x_test": images(30), "y_test": test}
    np.savez(place / "owned.npz", **parts, users_train=np.arange(60) // 3, users_test=100 + np.arange(30) // 3)
    people, others = np.arange(80) % 20, 20 + np.arange(20) % 5
    np.savez(place / "people.npz", x_train=images(80), y_train=people, x_test=images(20), y_test=others)
    Image.fromarray(images(1)[0]).save(place / "spot.png")


def _device(name: str) -> Any:
    """Around all of it: the counting device where it is asked for."""
    if name != "counting":
        return nullcontext()
    from benchmarks.shared.counting import counting_device

    with counting_device():
        pass  # before the first backward pass
    return counting_device()


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
