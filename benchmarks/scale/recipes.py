"""Two steps of every kind of recipe on made-up images, through the command line: python benchmarks/scale/recipes.py

    python benchmarks/scale/recipes.py [--only de2022/table13 de2022/table15] [--device cuda]

Recipes are of one kind if they share model, image size, classes, what is trained, and whether there are several views
in any row. For each kind, `sfumato train` takes the row of its first recipe with the most views, with 8 random images,
4 of them in an expected batch, 2 steps, noise multiplier 1, 2 views at most and random initial weights, in a process of
its own. The seconds of the whole command, of which the self-check and the choice of ways are a good part, the seconds
of the training in it, and the most memory that the process ever held go to benchmarks/results/recipes.json, machine by
machine. What was measured on this machine before is not measured again.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

from benchmarks import RESULTS
from benchmarks.shared import measuring
from benchmarks.shared.measuring import CannotError
from sfumato.cli.options.recipe import ABOUT, NOT_OPTIONS, ROW, names, table_of

RESULT = RESULTS / "recipes.json"
IMAGES, BATCH, STEPS, VIEWS = 8, 4, 2, 2
CLASSES = {"CIFAR100": 100, "imagenet": 1000, "places365": 365}
SHAPES = {"digits": (1, 8), "MNIST": (1, 28), "CIFAR10": (3, 32), "CIFAR100": (3, 32)}
REPLACED = (*NOT_OPTIONS, "pretrained", "pretrained-weights", "epsilon", "noise-multiplier")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Which kinds to measure, and where.

    Args:
        only: names of recipes; all kinds if there are none.
        device: cpu or cuda.
        json: the file of the figures.
    """

    only: tuple[str, ...] = ()
    device: str = "cuda" if torch.cuda.is_available() else "cpu"
    json: Path = RESULT


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What recipes of one kind share.

    Args:
        model: name.
        size, channels, classes: of the images.
        trainable: what is trained.
        several: whether there are more views than one.
    """

    model: str
    size: int
    channels: int
    classes: int
    trainable: tuple[str, ...]
    several: bool


def kind_of(recipe: dict[str, Any]) -> Kind:
    """The kind of a recipe's options."""
    name = recipe["source"].rpartition(":")[2]
    channels, size = SHAPES.get(name) or (recipe["channels"], recipe["size"])
    return Kind(
        model=recipe["model"],
        size=size,
        channels=channels,
        classes=CLASSES.get(name, 10),
        trainable=tuple(recipe.get("trainable", ["all"])),
        several=recipe.get("views", 1) > 1,
    )


def kinds() -> dict[Kind, list[str]]:
    """The kinds of private recipes for images, with the recipes of each; those for features train one linear layer."""
    found: dict[Kind, list[str]] = {}
    for name in names():
        recipe = measured_row(table_of(f"recipe:{name}"))
        on_images = not recipe["source"].startswith("features:") and not {"vocabulary", "task"} & set(recipe)
        if on_images and recipe[ABOUT]["command"].startswith("sfumato train "):
            found.setdefault(kind_of(recipe), []).append(name)
    return found


def measured_row(table: dict[str, Any]) -> dict[str, Any]:
    """Everything that a recipe holds, with the options of its first row, or of the one with the most views."""
    row = max(table.get(ROW, [{}]), key=lambda row: row.get("views", 1))
    return {**table, **{name: value for name, value in row.items() if name != ABOUT}}


def prepare(place: Path, recipe: str, kind: Kind, device: str) -> list[str]:
    """Images and recipe in this folder; gives the command for them."""
    generator = np.random.default_rng(0)
    shape = (kind.size, kind.size, kind.channels)
    labels = np.arange(IMAGES) % (IMAGES // 2)
    arrays = {
        "x_train": generator.integers(256, size=(IMAGES, *shape), dtype=np.uint8),
        "y_train": labels,
        "x_test": generator.integers(256, size=(IMAGES, *shape), dtype=np.uint8),
        "y_test": labels,
        "classes": np.array([f"class {number}" for number in range(kind.classes)]),
    }
    np.savez(place / "images.npz", **arrays)
    row = measured_row(table_of(recipe))
    kept = [f"{name} = {json.dumps(value)}\n" for name, value in row.items() if name not in REPLACED]
    (place / "recipe.toml").write_text("".join(kept), "utf-8")
    options = {
        "source": f"npz:{place / 'images.npz'}",
        "examples": IMAGES,
        "batch-size": BATCH,
        "steps": STEPS,
        "noise-multiplier": 1,
        "views": min(row.get("views", 1), VIEWS),
        "output": place / "run",
        "device": device,
    }
    words = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
    return ["train", str(place / "recipe.toml"), *words, "--json"]


def measure(recipe: str, kind: Kind, device: str) -> dict[str, Any]:
    """Run the command of a recipe, `recipe:NAME` or a file, in this process, which should be a fresh one.

    Raises:
        CannotError: the command was refused, with its own line.
    """
    from sfumato.cli import main

    said, told = io.StringIO(), io.StringIO()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        os.environ["SFUMATO_HOME"] = str(place / "home")
        command = prepare(place, recipe, kind, device)
        before = time.perf_counter()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(told):
            status = main(command)
        seconds = time.perf_counter() - before
    if status:
        lines = [line for line in told.getvalue().splitlines() if line.startswith("error")]
        raise CannotError(measuring.reason(CannotError(" ".join(lines) or f"exit status {status}")))
    run = json.loads(said.getvalue())
    row = {"seconds": seconds, "training_seconds": run["seconds"], "peak_bytes": _resident()}
    return row | ({"peak_gpu_bytes": torch.cuda.max_memory_allocated()} if device == "cuda" else {})


def _resident() -> int:
    """The most memory that this process has held, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def main(options: Options) -> None:
    machine = measuring.machine(options.device)
    found = json.loads(options.json.read_text("utf-8")) if options.json.exists() else {}
    own = found.setdefault(measuring.machine_name(machine), {})
    if own.get("machine") != machine:
        own.update(machine=machine, rows={})
    for kind, recipes in kinds().items():
        first = next((name for name in recipes if name in own["rows"]), recipes[0])
        if options.only and not set(options.only) & set(recipes):
            continue
        row = own["rows"].get(first, {"reason": "not yet measured"})
        if "reason" in row:
            row = attempt(f"recipe:{first}", kind, options.device)
        row = own["rows"][first] = {**row, **described(kind, recipes)}
        options.json.parent.mkdir(exist_ok=True)
        options.json.write_text(json.dumps(found, indent=2) + "\n", "utf-8")
        print(line(first, row), flush=True)


def described(kind: Kind, recipes: Sequence[str]) -> dict[str, Any]:
    """What a row says of its kind."""
    image = f"{kind.channels} x {kind.size} x {kind.size}"
    about = {"model": kind.model, "image": image, "classes": kind.classes, "trainable": list(kind.trainable)}
    return {**about, "several_views": kind.several, "recipes": list(recipes)}


def attempt(recipe: str, kind: Kind, device: str) -> dict[str, Any]:
    """Figures, or the reason why there are none."""
    try:
        return measuring.apart(measure, recipe, kind, device)
    except Exception as error:
        return {"reason": measuring.reason(error)}


def line(name: str, row: dict[str, Any]) -> str:
    """A row as it is printed."""
    what = f"{name:<32}{row['model']:<26}{row['image']:<16}{','.join(row['trainable']):<12}"
    if "reason" in row:
        return f"{what}{row['reason']}"
    gpu = f"{row['peak_gpu_bytes'] / 2**20:>9.0f} MiB GPU" if "peak_gpu_bytes" in row else ""
    return f"{what}{row['seconds']:>8.1f} s{row['training_seconds']:>8.1f} s{row['peak_bytes'] / 2**20:>9.0f} MiB{gpu}"


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
